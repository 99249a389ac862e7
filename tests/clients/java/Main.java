import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.reflect.InvocationTargetException;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;

/**
 * RocketMQ's Java client under remote control: one command per line of standard input, events as
 * JSON lines on standard output. Commands run side by side; each ends with a line
 * {@code {"as":NAME,"event":"done","verb":VERB,"error":null or text}}.
 *
 * <pre>
 * producer as= namesrv= group=                 then send, halt, stop
 * consumer as= namesrv= group= topic= [tags=]  then queues, stop
 * puller   as= namesrv= group= [suspend=]      then pull, stop
 * admin    as= -- mqadmin's command line       (5.x only)
 * </pre>
 */
public final class Main {
    private static final Map<String, Session> SESSIONS = new ConcurrentHashMap<>();

    private Main() {
    }

    public static void main(String[] arguments) throws Exception {
        // Standard output belongs to the events; the 5.x client's log framework talks there at its
        // start.
        Output.take();
        ExecutorService threads = Executors.newCachedThreadPool();
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String command = line;
            threads.execute(() -> run(command));
        }
        // The end of the input is the end of the program; clients that nobody stopped are dropped.
        Runtime.getRuntime().halt(0);
    }

    private static void run(String line) {
        String as = null;
        String verb = null;
        String error = null;
        try {
            Command command = new Command(line);
            verb = command.verb;
            as = command.text("as");
            run(as, command);
        } catch (Throwable thrown) {
            thrown.printStackTrace();
            error = thrown.toString();
        }
        Output.line(as, "done", "verb", verb, "error", error);
    }

    private static void run(String as, Command command) throws Exception {
        switch (command.verb) {
            case "producer" -> SESSIONS.put(as, new Sender(command));
            case "consumer" -> SESSIONS.put(as, new Receiver(command));
            case "puller" -> SESSIONS.put(as, new Puller(command));
            case "halt" -> session(as).halt();
            case "stop" -> {
                session(as).stop();
                SESSIONS.remove(as);
            }
            case "admin" -> admin(command);
            default -> session(as).run(command);
        }
    }

    private static Session session(String as) {
        Session session = SESSIONS.get(as);
        if (session == null) {
            throw new IllegalArgumentException("no client named " + as);
        }
        return session;
    }

    /** The tools are only there beside the 5.x client. */
    private static void admin(Command command) throws Exception {
        try {
            Class.forName("Admin").getDeclaredMethod("run", Command.class).invoke(null, command);
        } catch (InvocationTargetException thrown) {
            throw new IllegalStateException(thrown.getCause());
        }
    }
}
