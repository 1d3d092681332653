import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/** Allocates 300 MB in small arrays, of which 5 MB stay, then sorts in four threads. */
public class Load {
    public static void main(String[] arguments) throws Exception {
        Map<String, byte[]> kept = new HashMap<>();
        for (int i = 0; i < 300000; i++) {
            kept.put("k" + (i % 5000), new byte[i % 2000]);
        }
        Thread[] threads = new Thread[4];
        for (int i = 0; i < threads.length; i++) {
            threads[i] = new Thread(() -> {
                List<String> words = new ArrayList<>();
                for (int j = 0; j < 20000; j++) {
                    words.add("x" + j);
                }
                Collections.sort(words);
            });
            threads[i].start();
        }
        for (Thread thread : threads) {
            thread.join();
        }
        System.out.println(kept.values().stream().mapToLong(array -> array.length).sum());
    }
}
