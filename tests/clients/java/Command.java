import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/** One line of input: {@code verb as=NAME key=value ... [-- word ...]}. Values hold no blanks. */
final class Command {
    final String verb;
    /** The words behind {@code --}, for verbs that take a command line of their own. */
    final List<String> words;
    private final Map<String, String> values = new HashMap<>();

    Command(String line) {
        List<String> parts = Arrays.asList(line.trim().split("\\s+"));
        int end = parts.indexOf("--");
        words = end < 0 ? List.of() : parts.subList(end + 1, parts.size());
        verb = parts.get(0);
        for (String part : parts.subList(1, end < 0 ? parts.size() : end)) {
            int equals = part.indexOf('=');
            if (equals < 1) {
                throw new IllegalArgumentException("not key=value: " + part);
            }
            values.put(part.substring(0, equals), part.substring(equals + 1));
        }
    }

    String text(String key) {
        String value = values.get(key);
        if (value == null) {
            throw new IllegalArgumentException(verb + " needs " + key + "=");
        }
        return value;
    }

    String text(String key, String otherwise) {
        return values.getOrDefault(key, otherwise);
    }

    int number(String key, int otherwise) {
        String value = values.get(key);
        return value == null ? otherwise : Integer.parseInt(value);
    }
}
