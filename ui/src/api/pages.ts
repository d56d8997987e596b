// Lists that come in pages.

/** The first `wanted` items, read page by page; a page may hold fewer than it could. */
export async function firstItems<P extends { total: number }, T>(
  wanted: number,
  load: (start: number) => Promise<P>,
  itemsOf: (page: P) => T[],
): Promise<{ items: T[]; last: P }> {
  const items: T[] = [];
  for (;;) {
    const last = await load(items.length);
    const found = itemsOf(last);
    items.push(...found);
    if (found.length === 0 || items.length >= Math.min(wanted, last.total)) return { items, last };
  }
}
