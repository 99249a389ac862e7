import java.io.ByteArrayOutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/** Runs mqadmin inside this program and prints what it would have printed. */
final class Admin extends MQAdminStartup {
    private Admin() {
    }

    /**
     * {@code admin as= -- COMMAND -n NAMESRV ...}. One at a time: mqadmin writes to the one
     * standard output.
     */
    static synchronized void run(Command command) throws Exception {
        ByteArrayOutputStream bytes = new ByteArrayOutputStream();
        PrintStream capture = new PrintStream(bytes, true, StandardCharsets.UTF_8);
        PrintStream out = System.out;
        PrintStream err = System.err;
        System.setOut(capture);
        System.setErr(capture);
        try {
            // Some commands keep a client that they have shut down: each run gets new ones.
            SUB_COMMANDS.clear();
            main0(command.words.toArray(new String[0]), null);
        } finally {
            System.setOut(out);
            System.setErr(err);
        }
        Output.line(command.text("as"), "printed", "text", bytes.toString(StandardCharsets.UTF_8));
        // mqadmin names its clients by the millisecond.
        Thread.sleep(2);
    }
}
