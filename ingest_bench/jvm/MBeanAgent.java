import java.lang.instrument.Instrumentation;
import java.lang.management.ManagementFactory;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import javax.management.MBeanServer;
import javax.management.ObjectName;

/**
 * Calls operations of a JVM's own MBeans, from inside: a JMX port would be open to others, and needs an RMI client.
 *
 * <p>Loaded by `jcmd PID JVMTI.agent_load`. Its argument is calls, each in Base64 with commas between them: lines with
 * the MBean's name, the operation, its signature (types with spaces between them), and a line for each argument; one of
 * a String[] is the rest of the lines. All begin at once; it returns when all have ended, and throws when one failed.
 */
public final class MBeanAgent {
  private MBeanAgent() {}

  public static void agentmain(String argument, Instrumentation unused) throws Exception {
    List<Call> calls = new ArrayList<>();
    for (String call : argument.split(",")) {
      String text = new String(Base64.getUrlDecoder().decode(call), StandardCharsets.UTF_8);
      calls.add(new Call(text.split("\n", -1)));
    }
    calls.forEach(Thread::start);
    for (Call call : calls) {
      call.join();
    }
    for (Call call : calls) {
      if (call.problem != null) {
        throw new IllegalStateException(call.getName(), call.problem);
      }
    }
  }

  private static final class Call extends Thread {
    private final String[] lines;
    private Exception problem;

    Call(String[] lines) {
      super("ingest-bench: " + lines[1]);
      this.lines = lines;
      setDaemon(true);
    }

    @Override
    public void run() {
      MBeanServer server = ManagementFactory.getPlatformMBeanServer();
      String[] signature = lines[2].isEmpty() ? new String[0] : lines[2].split(" ");
      Object[] arguments = new Object[signature.length];
      for (int i = 0; i < signature.length; i++) {
        boolean isRest = signature[i].equals(String[].class.getName());
        arguments[i] = isRest ? List.of(lines).subList(3 + i, lines.length).toArray(new String[0]) : lines[3 + i];
      }
      try {
        server.invoke(new ObjectName(lines[0]), lines[1], arguments, signature);
      } catch (Exception error) {
        problem = error;
      }
    }
  }
}
