import java.io.BufferedReader;
import java.io.BufferedOutputStream;
import java.io.ByteArrayOutputStream;
import java.io.DataOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;

import scala.Console$;
import scala.runtime.BoxedUnit;

/**
 * Runs {@code kafka.tools.DumpLogSegments} many times in one JVM, because starting it takes longer than a dump.
 *
 * A request is a line of arguments, separated by tabs. An answer is what the tool printed to standard output and to
 * standard error, each as a length and as many bytes, and the name of the exception that ended it, or nothing.
 */
public final class DumpLogSegmentsRuns {
    public static void main(String[] arguments) throws Exception {
        BufferedReader requests = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        DataOutputStream answers = new DataOutputStream(new BufferedOutputStream(System.out));
        String request;
        while ((request = requests.readLine()) != null) {
            ByteArrayOutputStream output = new ByteArrayOutputStream();
            ByteArrayOutputStream errors = new ByteArrayOutputStream();
            String failure = run(request.split("\t"), output, errors);
            for (byte[] answer : new byte[][] {
                output.toByteArray(), errors.toByteArray(), failure.getBytes(StandardCharsets.UTF_8)}) {
                answers.writeInt(answer.length);
                answers.write(answer);
            }
            answers.flush();
        }
    }

    private static String run(String[] arguments, ByteArrayOutputStream output, ByteArrayOutputStream errors) {
        PrintStream printed = new PrintStream(output, false, StandardCharsets.UTF_8);
        PrintStream complained = new PrintStream(errors, false, StandardCharsets.UTF_8);
        System.setErr(complained);
        try {
            Console$.MODULE$.withOut(printed, () -> {
                kafka.tools.DumpLogSegments.main(arguments);
                return BoxedUnit.UNIT;
            });
            return "";
        } catch (Throwable failure) {
            return failure.toString();
        } finally {
            printed.flush();
            complained.flush();
        }
    }
}
