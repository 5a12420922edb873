package bench;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.lang.management.ManagementFactory;
import java.lang.management.ThreadMXBean;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import org.apache.storm.windowing.CountEvictionPolicy;
import org.apache.storm.windowing.CountTriggerPolicy;
import org.apache.storm.windowing.EvictionPolicy;
import org.apache.storm.windowing.TriggerPolicy;
import org.apache.storm.windowing.WindowLifecycleListener;
import org.apache.storm.windowing.WindowManager;

/**
 * Storm's WindowManager over count windows, on request: a line "length slide events exact" on standard input is answered by a line
 * "nanoseconds windows digest". Nanoseconds are CPU time of the thread that adds: neither compilation nor garbage collection counts.
 *
 * <p>Argument: a file of values, one per line. Events are added one after the other, a millisecond apart.
 */
public final class Driver {
    private static final ThreadMXBean THREADS = ManagementFactory.getThreadMXBean();

    private Driver() {
    }

    /** The result of a run: the number of windows, and a digest of their content. */
    private static final class Seen implements WindowLifecycleListener<Double> {
        private final boolean exact;
        private long windows;
        private long digest;

        Seen(boolean exact) {
            this.exact = exact;
        }

        @Override
        public void onExpiry(List<Double> events) {
            // Storm acks here; there is nothing to ack.
        }

        @Override
        public void onActivation(List<Double> events, List<Double> newEvents, List<Double> expired, Long reference) {
            windows++;
            add(events.size());
            if (exact) {
                events.forEach(value -> add(value.longValue()));
            } else {
                add(events.get(0).longValue());
                add(events.get(events.size() - 1).longValue());
            }
        }

        private void add(long value) {
            digest = digest * 31 + value;
        }
    }

    public static void main(String[] arguments) throws IOException {
        Double[] values = Files.readAllLines(Path.of(arguments[0])).stream().map(Double::valueOf).toArray(Double[]::new);
        BufferedReader requests = new BufferedReader(new InputStreamReader(System.in));
        for (String line = requests.readLine(); line != null; line = requests.readLine()) {
            String[] request = line.split(" ");
            Seen seen = new Seen(Boolean.parseBoolean(request[3]));
            System.gc();
            long taken = run(seen, Integer.parseInt(request[0]), Integer.parseInt(request[1]), Integer.parseInt(request[2]), values);
            System.out.println(taken + " " + seen.windows + " " + seen.digest);
        }
    }

    private static long run(Seen seen, int length, int slide, int events, Double[] values) {
        WindowManager<Double> manager = new WindowManager<>(seen);
        EvictionPolicy<Double, ?> eviction = new CountEvictionPolicy<>(length);
        TriggerPolicy<Double, ?> trigger = new CountTriggerPolicy<>(slide, manager, eviction);
        manager.setEvictionPolicy(eviction);
        manager.setTriggerPolicy(trigger);
        trigger.start();
        long started = THREADS.getCurrentThreadCpuTime();
        for (int event = 0; event < events; event++) {
            manager.add(values[event], event);
        }
        long taken = THREADS.getCurrentThreadCpuTime() - started;
        manager.shutdown();
        return taken;
    }
}
