import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.lang.management.ManagementFactory;
import java.net.ConnectException;
import java.net.InetAddress;
import java.net.Socket;
import java.net.UnknownHostException;
import java.nio.charset.StandardCharsets;
import java.nio.file.FileSystemException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.rmi.ConnectIOException;
import java.rmi.NotBoundException;
import java.rmi.Remote;
import java.rmi.registry.LocateRegistry;
import java.security.GeneralSecurityException;
import java.security.KeyStore;
import java.security.cert.Certificate;
import java.security.cert.CertificateException;
import java.security.cert.CertificateFactory;
import java.security.cert.X509Certificate;
import java.util.Base64;
import java.util.Map;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import javax.management.JMException;
import javax.management.MBeanServerConnection;
import javax.management.ObjectName;
import javax.management.remote.JMXConnector;
import javax.management.remote.rmi.RMIConnector;
import javax.management.remote.rmi.RMIServer;
import javax.net.ssl.SSLContext;
import javax.net.ssl.SSLEngine;
import javax.net.ssl.SSLException;
import javax.net.ssl.SSLParameters;
import javax.net.ssl.SSLSocket;
import javax.net.ssl.TrustManager;
import javax.net.ssl.TrustManagerFactory;
import javax.net.ssl.X509ExtendedTrustManager;
import javax.rmi.ssl.SslRMIClientSocketFactory;
import jdk.management.jfr.FlightRecorderMXBean;

/**
 * Records a JVM of another machine by its FlightRecorderMXBean, and brings the recording here.
 *
 * <p>Usage: JmxRecorder HOST PORT CA_FILE, with "" for the CAs that this machine trusts. The first line of stdin is user
 * and password in Base64 with a space between them, or empty. Further lines are commands, each with one line as response:
 * its first word, or "failed" with a key of `jmx._FAILURES` and details. `record NAME SECONDS SETTINGS_FILE` records for at most that time, `stop
 * FILE` writes the recording there. However this program ends (stdin closed, SIGTERM), it first deletes the recording in
 * the other JVM; after SIGKILL the recording ends by itself.
 */
public final class JmxRecorder {
  private static final Pattern ENDPOINT = Pattern.compile("endpoint:\\[(.+):(\\d+)(,[^\\]]*)?\\]");
  private static final Pattern TLS = Pattern.compile("SslRMIClientSocketFactory");

  private final FlightRecorderMXBean recorder;
  private long recording;

  private JmxRecorder(FlightRecorderMXBean recorder) {
    this.recorder = recorder;
    Runtime.getRuntime().addShutdownHook(new Thread(this::delete));
  }

  public static void main(String[] arguments) throws IOException {
    BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    int status = 0;
    try {
      serve(in, arguments);
    } catch (Failure problem) {
      System.out.println("failed " + problem.getMessage());
      status = 1;
    } catch (IOException | JMException | RuntimeException problem) {
      System.out.println("failed " + describe(problem));
      status = 1;
    }
    System.exit(status);
  }

  private static void serve(BufferedReader in, String[] arguments) throws IOException, JMException {
    trust(arguments[2]);
    RMIServer server = find(arguments[0], Integer.parseInt(arguments[1]));
    try (JMXConnector connector = new RMIConnector(server, null)) {
      connect(connector, in.readLine());
      MBeanServerConnection beans = connector.getMBeanServerConnection();
      ObjectName name = new ObjectName(FlightRecorderMXBean.MXBEAN_NAME);
      if (!beans.isRegistered(name)) {
        throw new Failure("no-recorder");
      }
      StringBuilder facts = new StringBuilder("facts " + (TLS.matcher(server.toString()).find() ? "tls " : "plain "));
      facts.append(encode((String) beans.getAttribute(new ObjectName(ManagementFactory.RUNTIME_MXBEAN_NAME), "Name")));
      for (String command : new String[] {"vmVersion", "vmFlags", "jfrConfigure"}) {
        facts.append(' ').append(encode(diagnose(beans, command)));
      }
      System.out.println(facts);
      JmxRecorder recorder =
          new JmxRecorder(ManagementFactory.newPlatformMXBeanProxy(beans, name.toString(), FlightRecorderMXBean.class));
      try {
        for (String line = in.readLine(); line != null; line = in.readLine()) {
          String[] words = line.split(" ", 4);
          if (words[0].equals("record")) {
            recorder.record(words[1], words[2], Path.of(words[3]));
          } else {
            recorder.stop(Path.of(line.substring("stop ".length())));
          }
          System.out.println(words[0]);
        }
      } finally {
        recorder.delete();
      }
    }
  }

  /** Registry and server may each be encrypted. */
  private static RMIServer find(String host, int port) throws IOException {
    Remote server;
    try {
      try {
        server = LocateRegistry.getRegistry(host, port).lookup("jmxrmi");
      } catch (ConnectIOException encrypted) {
        server = LocateRegistry.getRegistry(host, port, new SslRMIClientSocketFactory()).lookup("jmxrmi");
      }
    } catch (NotBoundException problem) {
      throw new Failure("no-jmx");
    }
    // The registry names the address that gets the credentials.
    Matcher endpoint = ENDPOINT.matcher(server.toString());
    if (!(server instanceof RMIServer) || !endpoint.find()) {
      throw new Failure("no-jmx");
    }
    if (!InetAddress.getByName(endpoint.group(1)).equals(InetAddress.getByName(host))) {
      throw new Failure("elsewhere " + endpoint.group(1));
    }
    return (RMIServer) server;
  }

  private static void connect(JMXConnector connector, String credentials) throws IOException {
    String[] encoded = credentials.split(" ");
    Object pair = encoded.length < 2 ? null : new String[] {decode(encoded[0]), decode(encoded[1])};
    try {
      connector.connect(pair == null ? Map.of() : Map.of(JMXConnector.CREDENTIALS, pair));
    } catch (SecurityException problem) {
      throw new Failure("unauthenticated");
    }
  }

  private static String diagnose(MBeanServerConnection beans, String command) throws IOException, JMException {
    ObjectName name = new ObjectName("com.sun.management:type=DiagnosticCommand");
    return (String) beans.invoke(name, command, new Object[] {new String[0]}, new String[] {String[].class.getName()});
  }

  private void record(String name, String seconds, Path settings) throws IOException {
    recording = recorder.newRecording();
    recorder.setConfiguration(recording, Files.readString(settings));
    // maxSize: the default drops the oldest chunks.
    recorder.setRecordingOptions(recording,
        Map.of("name", name, "disk", "true", "maxSize", "0", "duration", seconds + " s"));
    recorder.startRecording(recording);
  }

  private void stop(Path file) throws IOException {
    recorder.stopRecording(recording);
    long stream = recorder.openStream(recording, Map.of("blockSize", "1000000"));
    try (OutputStream out = Files.newOutputStream(file)) {
      for (byte[] block = recorder.readStream(stream); block != null; block = recorder.readStream(stream)) {
        try {
          out.write(block);
        } catch (IOException problem) {
          throw new Failure("unwritten " + problem.getMessage());
        }
        System.out.println("received " + block.length);
        if (System.out.checkError()) {
          // The other end of the pipe has gone.
          System.exit(1);
        }
      }
    }
    recorder.closeStream(stream);
    delete();
  }

  /** Stops it too. Called once more at the end of this program. */
  private synchronized void delete() {
    long deleted = recording;
    recording = 0;
    if (deleted != 0) {
      try {
        recorder.closeRecording(deleted);
      } catch (IOException | RuntimeException gone) {
        System.err.println("the recording was not deleted: " + describe(gone));
      }
    }
  }

  /** Certificates are verified by these CAs, and must have the name of the host: RMI itself checks no name. */
  private static void trust(String caFile) throws IOException {
    try {
      KeyStore store = null;
      if (!caFile.isEmpty()) {
        store = KeyStore.getInstance(KeyStore.getDefaultType());
        store.load(null, null);
        try (InputStream in = Files.newInputStream(Path.of(caFile))) {
          for (Certificate certificate : CertificateFactory.getInstance("X.509").generateCertificates(in)) {
            store.setCertificateEntry("ca" + store.size(), certificate);
          }
        }
      }
      TrustManagerFactory factory = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
      factory.init(store);
      SSLContext context = SSLContext.getInstance("TLS");
      context.init(null,
          new TrustManager[] {new Named((X509ExtendedTrustManager) factory.getTrustManagers()[0])}, null);
      SSLContext.setDefault(context);
    } catch (GeneralSecurityException problem) {
      throw new Failure("tls " + problem.getMessage());
    }
  }

  private static String describe(Throwable problem) {
    Throwable cause = problem;
    boolean isTls = false;
    while (cause.getCause() != null) {
      cause = cause.getCause();
      isTls |= cause instanceof SSLException || cause instanceof CertificateException;
    }
    String text = String.valueOf(cause.getMessage()).replaceAll("\\s+", " ");
    if (cause instanceof UnknownHostException) {
      return "unknown-host " + text;
    }
    if (cause instanceof ConnectException) {
      return "unreachable " + text;
    }
    if (isTls) {
      return text.contains("unrecognized SSL message") ? "no-jmx" : "tls " + text;
    }
    // Of the recorder in the other JVM: a broken connection has an exception of its own.
    if (cause.getClass() == IOException.class || cause instanceof FileSystemException) {
      return "repository " + text;
    }
    if (cause instanceof SecurityException) {
      return "denied " + text;
    }
    return "lost " + cause.getClass().getSimpleName() + ": " + text;
  }

  private static String encode(String text) {
    return Base64.getEncoder().encodeToString(text.getBytes(StandardCharsets.UTF_8));
  }

  private static String decode(String text) {
    return new String(Base64.getDecoder().decode(text), StandardCharsets.UTF_8);
  }

  private static final class Failure extends RuntimeException {
    private static final long serialVersionUID = 1;

    Failure(String message) {
      super(message);
    }
  }

  /** Verifies the name of the host in addition to the chain. */
  private static final class Named extends X509ExtendedTrustManager {
    private final X509ExtendedTrustManager chains;

    Named(X509ExtendedTrustManager chains) {
      this.chains = chains;
    }

    @Override
    public void checkServerTrusted(X509Certificate[] chain, String type, Socket socket) throws CertificateException {
      SSLParameters parameters = ((SSLSocket) socket).getSSLParameters();
      parameters.setEndpointIdentificationAlgorithm("HTTPS");
      ((SSLSocket) socket).setSSLParameters(parameters);
      chains.checkServerTrusted(chain, type, socket);
    }

    @Override
    public void checkServerTrusted(X509Certificate[] chain, String type) throws CertificateException {
      throw new CertificateException("not a socket");
    }

    @Override
    public void checkServerTrusted(X509Certificate[] chain, String type, SSLEngine engine) throws CertificateException {
      throw new CertificateException("not a socket");
    }

    @Override
    public void checkClientTrusted(X509Certificate[] chain, String type) throws CertificateException {
      throw new CertificateException("not a server");
    }

    @Override
    public void checkClientTrusted(X509Certificate[] chain, String type, Socket socket) throws CertificateException {
      throw new CertificateException("not a server");
    }

    @Override
    public void checkClientTrusted(X509Certificate[] chain, String type, SSLEngine engine) throws CertificateException {
      throw new CertificateException("not a server");
    }

    @Override
    public X509Certificate[] getAcceptedIssuers() {
      return chains.getAcceptedIssuers();
    }
  }
}
