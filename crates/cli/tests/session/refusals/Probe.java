import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.time.Duration;

/**
 * Requests as programs in Java make them, by java.net.http.
 *
 * Arguments: seconds after which a request is given up, and the requests, each as REFUSAL=URL. A line for each.
 */
class Probe {
    static String ask(HttpClient client, Duration patience, String url, String host) {
        try {
            HttpRequest.Builder request = HttpRequest.newBuilder(URI.create(url)).timeout(patience);
            if (host != null) {
                request.header("Host", host);
            }
            HttpResponse<String> answer = client.send(request.build(), HttpResponse.BodyHandlers.ofString());
            return "answer " + answer.statusCode() + " " + answer.body();
        } catch (Exception error) {
            StringBuilder words = new StringBuilder();
            for (Throwable cause = error; cause != null; cause = cause.getCause()) {
                words.append(cause.getClass().getSimpleName()).append(" ").append(cause.getMessage()).append(" ");
            }
            return words.toString();
        }
    }

    public static void main(String[] arguments) {
        Duration patience = Duration.ofSeconds(Integer.parseInt(arguments[0]));
        for (int i = 1; i < arguments.length; i++) {
            String[] parts = arguments[i].split("=", 2);
            HttpClient client = HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1).build();
            String words = ask(client, patience, parts[1], null);
            if (parts[0].equals("later")) {
                // A second request on the same connection has another host.
                words = ask(client, patience, parts[1], "evil.example");
            }
            System.out.println("Java\t" + parts[0] + "\t" + words.strip().replaceAll("\\s+", " "));
        }
        // Threads of a client end late.
        System.exit(0);
    }
}
