/** A client that lives under one name until {@code stop}. */
interface Session {
    /** Carries out a verb of this client. The caller reports its end. */
    void run(Command command) throws Exception;

    /** Ends a send that goes on for ever; other clients have nothing to halt. */
    default void halt() {
    }

    void stop();
}
