"""The schemas of Kafka's internal records: what coordinators and controllers write about groups, transactions and topics.

As of Kafka 4.1, older versions included. No Python library carries them (docs/decisions/0013). A test compares what is read
by them with what Kafka's own classes read.
"""

from __future__ import annotations

from typing import Final

from storage_core.internal_records.message_schema import parse_messages

GROUP_COORDINATOR: Final = parse_messages("""
0 LegacyOffsetCommitKey 0
  group string
  topic string
  partition int32
0 LegacyOffsetCommitValue 0
  offset int64
  metadata string
  commitTimestamp int64
1 OffsetCommitKey 0
  group string
  topic string
  partition int32
1 OffsetCommitValue 0-4 flexible 4+
  offset int64
  leaderEpoch int32 3+
  metadata string
  commitTimestamp int64
  expireTimestamp int64 1
  topicId uuid 4+ tag 0
2 GroupMetadataKey 0
  group string
2 GroupMetadataValue 0-4 flexible 4+
  protocolType string
  generation int32
  protocol string?
  leader string?
  currentStateTimestamp int64 2+
  members []MemberMetadata
    memberId string
    groupInstanceId string? 3+
    clientId string
    clientHost string
    rebalanceTimeout int32 1+
    sessionTimeout int32
    subscription bytes
    assignment bytes
3 ConsumerGroupMetadataKey 0
  groupId string
3 ConsumerGroupMetadataValue 0 flexible 0+
  epoch int32
  metadataHash int64 tag 0
4 ConsumerGroupPartitionMetadataKey 0
  groupId string
4 ConsumerGroupPartitionMetadataValue 0 flexible 0+
  topics []TopicMetadata
    topicId uuid
    topicName string
    numPartitions int32
    partitionMetadata []PartitionMetadata
      partition int32
      racks []string
5 ConsumerGroupMemberMetadataKey 0
  groupId string
  memberId string
5 ConsumerGroupMemberMetadataValue 0 flexible 0+
  instanceId string?
  rackId string?
  clientId string
  clientHost string
  subscribedTopicNames []string
  subscribedTopicRegex string?
  rebalanceTimeoutMs int32
  serverAssignor string?
  classicMemberMetadata ClassicMemberMetadata? tag 0
    sessionTimeoutMs int32
    supportedProtocols []ClassicProtocol
      name string
      metadata bytes
6 ConsumerGroupTargetAssignmentMetadataKey 0
  groupId string
6 ConsumerGroupTargetAssignmentMetadataValue 0 flexible 0+
  assignmentEpoch int32
7 ConsumerGroupTargetAssignmentMemberKey 0
  groupId string
  memberId string
7 ConsumerGroupTargetAssignmentMemberValue 0 flexible 0+
  topicPartitions []TopicPartition
    topicId uuid
    partitions []int32
8 ConsumerGroupCurrentMemberAssignmentKey 0
  groupId string
  memberId string
8 ConsumerGroupCurrentMemberAssignmentValue 0 flexible 0+
  memberEpoch int32
  previousMemberEpoch int32
  state int8
  assignedPartitions []TopicPartitions
    topicId uuid
    partitions []int32
  partitionsPendingRevocation []TopicPartitions
10 ShareGroupMemberMetadataKey 0
  groupId string
  memberId string
10 ShareGroupMemberMetadataValue 0 flexible 0+
  rackId string?
  clientId string
  clientHost string
  subscribedTopicNames []string
11 ShareGroupMetadataKey 0
  groupId string
11 ShareGroupMetadataValue 0 flexible 0+
  epoch int32
  metadataHash int64
12 ShareGroupTargetAssignmentMetadataKey 0
  groupId string
12 ShareGroupTargetAssignmentMetadataValue 0 flexible 0+
  assignmentEpoch int32
13 ShareGroupTargetAssignmentMemberKey 0
  groupId string
  memberId string
13 ShareGroupTargetAssignmentMemberValue 0 flexible 0+
  topicPartitions []TopicPartition
    topicId uuid
    partitions []int32
14 ShareGroupCurrentMemberAssignmentKey 0
  groupId string
  memberId string
14 ShareGroupCurrentMemberAssignmentValue 0 flexible 0+
  memberEpoch int32
  previousMemberEpoch int32
  state int8
  assignedPartitions []TopicPartitions
    topicId uuid
    partitions []int32
15 ShareGroupStatePartitionMetadataKey 0
  groupId string
15 ShareGroupStatePartitionMetadataValue 0 flexible 0+
  initializingTopics []TopicPartitionsInfo
    topicId uuid
    topicName string
    partitions []int32
  initializedTopics []TopicPartitionsInfo
  deletingTopics []TopicInfo
    topicId uuid
    topicName string
16 ConsumerGroupRegularExpressionKey 0
  groupId string
  regularExpression string
16 ConsumerGroupRegularExpressionValue 0 flexible 0+
  topics []string
  version int64
  timestamp int64
17 StreamsGroupMetadataKey 0
  groupId string
17 StreamsGroupMetadataValue 0 flexible 0+
  epoch int32
  metadataHash int64
19 StreamsGroupMemberMetadataKey 0
  groupId string
  memberId string
19 StreamsGroupMemberMetadataValue 0 flexible 0+
  instanceId string?
  rackId string?
  clientId string
  clientHost string
  rebalanceTimeoutMs int32
  topologyEpoch int32
  processId string
  userEndpoint Endpoint?
    host string
    port uint16
  clientTags []KeyValue
    key string
    value string
20 StreamsGroupTargetAssignmentMetadataKey 0
  groupId string
20 StreamsGroupTargetAssignmentMetadataValue 0 flexible 0+
  assignmentEpoch int32
21 StreamsGroupTargetAssignmentMemberKey 0
  groupId string
  memberId string
21 StreamsGroupTargetAssignmentMemberValue 0 flexible 0+
  activeTasks []TaskIds
    subtopologyId string
    partitions []int32
  standbyTasks []TaskIds
  warmupTasks []TaskIds
22 StreamsGroupCurrentMemberAssignmentKey 0
  groupId string
  memberId string
22 StreamsGroupCurrentMemberAssignmentValue 0 flexible 0+
  memberEpoch int32
  previousMemberEpoch int32
  state int8
  activeTasks []TaskIds
    subtopologyId string
    partitions []int32
  standbyTasks []TaskIds
  warmupTasks []TaskIds
  activeTasksPendingRevocation []TaskIds
  standbyTasksPendingRevocation []TaskIds
  warmupTasksPendingRevocation []TaskIds
23 StreamsGroupTopologyKey 0
  groupId string
23 StreamsGroupTopologyValue 0 flexible 0+
  epoch int32
  subtopologies []Subtopology
    subtopologyId string
    sourceTopics []string
    sourceTopicRegex []string
    stateChangelogTopics []TopicInfo
      name string
      partitions int32
      replicationFactor int16
      topicConfigs []TopicConfig
        key string
        value string
    repartitionSinkTopics []string
    repartitionSourceTopics []TopicInfo
    copartitionGroups []CopartitionGroup
      sourceTopics []int16
      sourceTopicRegex []int16
      repartitionSourceTopics []int16
""")
"""Keys and values of ``__consumer_offsets`` (KIP-211, KIP-345, KIP-848, KIP-932, KIP-1071)."""

CONSUMER_PROTOCOL: Final = parse_messages("""
ConsumerProtocolAssignment 0-3
  assignedPartitions []TopicPartition
    topic string
    partitions []int32
  userData bytes?
ConsumerProtocolSubscription 0-3
  topics []string
  userData bytes?
  ownedPartitions []TopicPartition 1+
    topic string
    partitions []int32
  generationId int32 2+
  rackId string? 3+
""")
"""What members of classic groups tell each other (KIP-429, KIP-792, KIP-881)."""

TRANSACTION_COORDINATOR: Final = parse_messages("""
0 TransactionLogKey 0
  transactionalId string
0 TransactionLogValue 0-1 flexible 1+
  producerId int64
  previousProducerId int64 1+ tag 0 = -1
  nextProducerId int64 1+ tag 1 = -1
  producerEpoch int16
  nextProducerEpoch int16 1+ tag 3 = -1
  transactionTimeoutMs int32
  transactionStatus int8
  transactionPartitions []PartitionsSchema?
    topic string
    partitionIds []int32
  transactionLastUpdateTimestampMs int64
  transactionStartTimestampMs int64
  clientTransactionVersion int16 1+ tag 2
""")
"""Keys and values of ``__transaction_state`` (KIP-98, KIP-890)."""

SHARE_COORDINATOR: Final = parse_messages("""
0 ShareSnapshotKey 0
  groupId string
  topicId uuid
  partition int32
0 ShareSnapshotValue 0 flexible 0+
  snapshotEpoch int32
  stateEpoch int32
  leaderEpoch int32
  startOffset int64
  createTimestamp int64
  writeTimestamp int64
  stateBatches []StateBatch
    firstOffset int64
    lastOffset int64
    deliveryState int8
    deliveryCount int16
1 ShareUpdateKey 0
  groupId string
  topicId uuid
  partition int32
1 ShareUpdateValue 0 flexible 0+
  snapshotEpoch int32
  leaderEpoch int32
  startOffset int64
  stateBatches []StateBatch
    firstOffset int64
    lastOffset int64
    deliveryState int8
    deliveryCount int16
""")
"""Keys and values of ``__share_group_state`` (KIP-932)."""

CLUSTER_METADATA: Final = parse_messages("""
0 RegisterBrokerRecord 0-3 flexible 0+
  brokerId int32
  isMigratingZkBroker bool 2+
  incarnationId uuid
  brokerEpoch int64
  endPoints []BrokerEndpoint
    name string
    host string
    port uint16
    securityProtocol int16
  features []BrokerFeature
    name string
    minSupportedVersion int16
    maxSupportedVersion int16
  rack string?
  fenced bool
  inControlledShutdown bool 1+
  logDirs []uuid 3+ tag 0
1 UnregisterBrokerRecord 0 flexible 0+
  brokerId int32
  brokerEpoch int64
2 TopicRecord 0 flexible 0+
  name string
  topicId uuid
3 PartitionRecord 0-2 flexible 0+
  partitionId int32
  topicId uuid
  replicas []int32
  isr []int32
  removingReplicas []int32
  addingReplicas []int32
  leader int32
  leaderRecoveryState int8 tag 0
  leaderEpoch int32
  partitionEpoch int32
  directories []uuid 1+
  eligibleLeaderReplicas []int32? 2+ tag 1 = null
  lastKnownElr []int32? 2+ tag 2 = null
4 ConfigRecord 0 flexible 0+
  resourceType int8
  resourceName string
  name string
  value string?
5 PartitionChangeRecord 0-2 flexible 0+
  partitionId int32
  topicId uuid
  isr []int32? tag 0 = null
  leader int32 tag 1 = -2
  replicas []int32? tag 2 = null
  removingReplicas []int32? tag 3 = null
  addingReplicas []int32? tag 4 = null
  leaderRecoveryState int8 tag 5 = -1
  directories []uuid? 1+ tag 8 = null
  eligibleLeaderReplicas []int32? 2+ tag 6 = null
  lastKnownElr []int32? 2+ tag 7 = null
7 FenceBrokerRecord 0 flexible 0+
  id int32
  epoch int64
8 UnfenceBrokerRecord 0 flexible 0+
  id int32
  epoch int64
9 RemoveTopicRecord 0 flexible 0+
  topicId uuid
10 DelegationTokenRecord 0 flexible 0+
  owner string
  requester string
  renewers []string
  issueTimestamp int64
  maxTimestamp int64
  expirationTimestamp int64
  tokenId string
11 UserScramCredentialRecord 0 flexible 0+
  name string
  mechanism int8
  salt bytes
  storedKey bytes
  serverKey bytes
  iterations int32
12 FeatureLevelRecord 0 flexible 0+
  name string
  featureLevel int16
14 ClientQuotaRecord 0 flexible 0+
  entity []EntityData
    entityType string
    entityName string?
  key string
  value float64
  remove bool
15 ProducerIdsRecord 0 flexible 0+
  brokerId int32
  brokerEpoch int64
  nextProducerId int64
17 BrokerRegistrationChangeRecord 0-2 flexible 0+
  brokerId int32
  brokerEpoch int64
  fenced int8 tag 0
  inControlledShutdown int8 1+ tag 1
  logDirs []uuid 2+ tag 2
18 AccessControlEntryRecord 0 flexible 0+
  id uuid
  resourceType int8
  resourceName string
  patternType int8
  principal string
  host string
  operation int8
  permissionType int8
19 RemoveAccessControlEntryRecord 0 flexible 0+
  id uuid
20 NoOpRecord 0 flexible 0+
21 ZkMigrationStateRecord 0 flexible 0+
  zkMigrationState int8
22 RemoveUserScramCredentialRecord 0 flexible 0+
  name string
  mechanism int8
23 BeginTransactionRecord 0 flexible 0+
  name string? tag 0 = null
24 EndTransactionRecord 0 flexible 0+
25 AbortTransactionRecord 0 flexible 0+
  reason string? tag 0 = null
26 RemoveDelegationTokenRecord 0 flexible 0+
  tokenId string
27 RegisterControllerRecord 0 flexible 0+
  controllerId int32
  incarnationId uuid
  zkMigrationReady bool
  endPoints []ControllerEndpoint
    name string
    host string
    port uint16
    securityProtocol int16
  features []ControllerFeature
    name string
    minSupportedVersion int16
    maxSupportedVersion int16
28 ClearElrRecord 0 flexible 0+
  topicName string
""")
"""Values of ``__cluster_metadata`` (KIP-631, KIP-746, KIP-778, KIP-858, KIP-868, KIP-966)."""

REMOTE_LOG_METADATA: Final = parse_messages("""
0 RemoteLogSegmentMetadataRecord 0 flexible 0+
  remoteLogSegmentId RemoteLogSegmentIdEntry
    topicIdPartition TopicIdPartitionEntry
      name string
      id uuid
      partition int32
    id uuid
  startOffset int64
  endOffset int64
  brokerId int32
  maxTimestampMs int64
  eventTimestampMs int64
  segmentLeaderEpochs []SegmentLeaderEpochEntry
    leaderEpoch int32
    offset int64
  segmentSizeInBytes int32
  customMetadata bytes?
  remoteLogSegmentState int8
  txnIndexEmpty bool tag 0
1 RemoteLogSegmentMetadataUpdateRecord 0 flexible 0+
  remoteLogSegmentId RemoteLogSegmentIdEntry
    topicIdPartition TopicIdPartitionEntry
      name string
      id uuid
      partition int32
    id uuid
  brokerId int32
  eventTimestampMs int64
  customMetadata bytes?
  remoteLogSegmentState int8
2 RemotePartitionDeleteMetadataRecord 0 flexible 0+
  topicIdPartition TopicIdPartitionEntry
    name string
    id uuid
    partition int32
  brokerId int32
  eventTimestampMs int64
  remotePartitionDeleteState int8
3 RemoteLogSegmentMetadataSnapshotRecord 0 flexible 0+
  segmentId uuid
  startOffset int64
  endOffset int64
  brokerId int32
  maxTimestampMs int64
  eventTimestampMs int64
  segmentLeaderEpochs []SegmentLeaderEpochEntry
    leaderEpoch int32
    offset int64
  segmentSizeInBytes int32
  customMetadata bytes?
  remoteLogSegmentState int8
  txnIndexEmpty bool tag 0
""")
"""Values of ``__remote_log_metadata`` (KIP-405, KIP-1005)."""

CONTROL_RECORDS: Final = parse_messages("""
KRaftVersionRecord 0 flexible 0+
  version int16
  kRaftVersion int16
LeaderChangeMessage 0-1 flexible 0+
  version int16
  leaderId int32
  voters []Voter
    voterId int32
    voterDirectoryId uuid 1+
  grantingVoters []Voter
SnapshotFooterRecord 0 flexible 0+
  version int16
SnapshotHeaderRecord 0 flexible 0+
  version int16
  lastContainedLogTimestamp int64
VotersRecord 0 flexible 0+
  version int16
  voters []Voter
    voterId int32
    voterDirectoryId uuid
    endpoints []Endpoint
      name string
      host string
      port uint16
    kRaftVersionFeature KRaftVersionFeature
      minSupportedVersion int16
      maxSupportedVersion int16
""")
"""Values of control records of ``__cluster_metadata`` (KIP-595, KIP-630, KIP-853)."""
