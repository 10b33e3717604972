"""Spark sessions in processes of their own, so that two versions of Spark can be measured in turn."""
