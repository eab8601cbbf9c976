import java.util.List;

/** Trees of allocations: one that is full after five frames, and one of names with numbers. */
public final class StackTrees {
  public static void main(String[] arguments) {
    AllocationStacks full = new AllocationStacks(5);
    full.add(List.of("new TLABs", "a.Main.run", "a.List.add", "byte[]"), 1);
    full.add(List.of("new TLABs", "a.Main.run", "byte[]"), 10);
    full.add(List.of("new TLABs", "a.Main.run", "a.Map.put", "byte[]"), 100);
    full.add(List.of("outside TLABs", "a.Main.run", "byte[]"), 1000);
    AllocationStacks names = new AllocationStacks();
    for (String name : arguments) {
      names.add(List.of("new TLABs", name), 1);
    }
    System.out.println("[" + full.json() + "," + names.json() + "]");
  }
}
