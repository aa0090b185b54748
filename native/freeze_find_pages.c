// Runs in the process that is frozen. Finds the pages that must be stored: those pages of private mappings that differ
// from their file or, without a file, from zeros. Of a page that differs little from an earlier image, only the words
// that differ are stored.

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>

#include "freeze_parts.h"
#include "pagemap.h"
#include "sys.h"

// If the untouched pages between two runs of stored pages take no more than this, they are stored, too: one more
// mapping would slow down thaw more than 64 KiB of zeros.
#define MERGE_BYTES (16 * IMAGE_PAGE)

// Bits of an entry of /proc/self/pagemap. Source: Documentation/admin-guide/mm/pagemap.rst.
#define ENTRY_PRESENT (UINT64_C(1) << 63)
#define ENTRY_SWAPPED (UINT64_C(1) << 62)
#define ENTRY_OF_FILE (UINT64_C(1) << 61)

// If more than this number of a page's words differ from the earlier image, the whole page is stored. A single stored
// word takes as much space as two words of a page, and thaw takes longer for it.
#define WORDS_MOST 128
#define PAGE_WORDS (IMAGE_PAGE / 8)

const struct landed_image *image_of(const struct mapping *mapping) {
    for (uint32_t i = 0; i < thawd_landing.image_count; i++) {
        const struct landed_image *image = &thawd_landing.images[i];
        if (mapping->inode == image->inode && mapping->device == image->device)
            return image;
    }
    return 0;
}

// Records that pages [start, end) of a mapping must be stored. The kernel may report pages twice or out of order. The
// recorded ranges of a mapping must be in order and must not overlap, so a range that touches, overlaps or precedes an
// earlier one is merged with it. So is a range that begins at most `gap` bytes after the end of an earlier one.
static int add_pages(struct freezing *f, uint32_t mapping, uint64_t start, uint64_t end, uint64_t gap) {
    while (f->ranges.count) {
        struct range *last = AT(f->ranges, struct range, f->ranges.count - 1);
        if (last->mapping != mapping || (start > last->end && start - last->end > gap))
            break;
        start = last->start < start ? last->start : start;
        end = last->end > end ? last->end : end;
        f->ranges.count--;
    }
    struct range *range = table_add(&f->ranges);
    if (!range)
        return refuse(f, "pages",
                      "memory is in more separate pieces than an image can hold; unmap some, or use larger pieces", "");
    const struct mapping *in = AT(f->mappings, struct mapping, mapping);
    const struct landed_image *image = image_of(in);
    int is_anonymous = image && in->offset >= image->anonymous_offset;
    int of_file = in->path != NO_INDEX && !in->deleted && in->inode && !is_anonymous;
    *range = (struct range){start, end, mapping, (uint32_t)of_file, image && !in->deleted};
    return 0;
}

static int add_words(struct freezing *f, const uint64_t *page, const uint64_t *before) {
    for (unsigned i = 0; i < PAGE_WORDS; i++) {
        if (page[i] == before[i])
            continue;
        struct changed_word *word = table_add(&f->sections[SECTION_WORDS]);
        if (!word)
            return -1;
        *word = (struct changed_word){(uint64_t)&page[i], page[i]};
    }
    return 0;
}

// Compares a page with the same page of the earlier image. Records nothing if they are equal, the words that differ if
// they are few, and otherwise the page.
static int compare_page(struct freezing *f, uint32_t mapping, uint64_t address, const uint64_t *before) {
    const uint64_t *page = (const uint64_t *)address;
    unsigned differ = 0;
    for (unsigned i = 0; i < PAGE_WORDS; i++)
        differ += page[i] != before[i];
    if (!differ)
        return 0;
    struct table *words = &f->sections[SECTION_WORDS];
    uint32_t count = words->count;
    int may_write = AT(f->mappings, struct mapping, mapping)->protection & 2;
    if (may_write && differ <= WORDS_MOST && !add_words(f, page, before))
        return 0;
    words->count = count;
    return add_pages(f, mapping, address, address + IMAGE_PAGE, 0);
}

// Records what differs from the image between `start` and `end` of a mapping of that image.
static int add_difference(struct freezing *f, uint32_t index, uint64_t start, uint64_t end) {
    const struct mapping *mapping = AT(f->mappings, struct mapping, index);
    // The second half of `f->text` is used, because the first half holds the kernel's list of pages.
    unsigned char *before = f->text.base + f->text.capacity_bytes / 2;
    uint64_t most = f->text.capacity_bytes / 2;
    int fd = sys_open((const char *)f->sections[SECTION_STRINGS].base + mapping->path, O_RDONLY | O_CLOEXEC, 0);
    if (fd < 0)
        return fail(f, "pages", fd, "the image of which this process is a copy cannot be opened");
    int result = 0;
    while (!result && start < end) {
        uint64_t bytes = end - start < most ? end - start : most;
        long got = sys_pread(fd, before, bytes, mapping->offset + (start - mapping->start));
        if (got < IMAGE_PAGE) { // past the end of the image
            result = add_pages(f, index, start, end, 0);
            break;
        }
        uint64_t stop = start + (uint64_t)got / IMAGE_PAGE * IMAGE_PAGE;
        for (; !result && start < stop; start += IMAGE_PAGE, before += IMAGE_PAGE)
            result = compare_page(f, index, start, (const uint64_t *)before);
        before = f->text.base + f->text.capacity_bytes / 2;
    }
    sys_close(fd);
    return result;
}

static int add_range(struct freezing *f, uint32_t index, uint64_t start, uint64_t end) {
    if (start >= end)
        return 0;
    const struct mapping *mapping = AT(f->mappings, struct mapping, index);
    // The kernel may report a page twice, but the page's words must be recorded only once.
    const struct table *words = &f->sections[SECTION_WORDS];
    uint64_t last = words->count ? AT(*words, struct changed_word, words->count - 1)->address : 0;
    if (!image_of(mapping) || mapping->deleted || !(mapping->protection & 1) || start < last)
        return add_pages(f, index, start, end, MERGE_BYTES);
    return add_difference(f, index, start, end);
}

static uint64_t later(uint64_t a, uint64_t b) {
    return a > b ? a : b;
}

// Finds the used pages from `*at` to the mapping's end with PAGEMAP_SCAN. Returns 0 when all were found. Returns
// -ENOTTY or -EINVAL when this kernel lacks the call or makes no progress; then `read_entries` must find the pages from
// `*at` on.
static int scan(struct freezing *f, uint32_t index, uint64_t *at) {
    const struct mapping *mapping = AT(f->mappings, struct mapping, index);
    struct page_region *regions = (struct page_region *)f->text.base;
    while (*at < mapping->end) {
        struct pm_scan_arg arg = {
            .size = sizeof arg,
            .start = *at,
            .end = mapping->end,
            .vec = (uint64_t)regions,
            .vec_len = 4096,
            .category_inverted = PAGE_IS_FILE | PAGE_IS_PFNZERO,
            .category_mask = PAGE_IS_FILE | PAGE_IS_PFNZERO,
            .category_anyof_mask = PAGE_IS_PRESENT | PAGE_IS_SWAPPED,
            .return_mask = PAGE_IS_FILE,
        };
        long got = sys_ioctl(f->pagemap_fd, PAGEMAP_SCAN_REQUEST, &arg);
        if (got == -ENOTTY || got == -EINVAL)
            return (int)got;
        if (got < 0)
            return fail(f, "pages", got, "the used pages cannot be listed with PAGEMAP_SCAN");
        uint64_t next = arg.walk_end;
        for (long i = 0; i < got; i++) {
            uint64_t end = regions[i].end < mapping->end ? regions[i].end : mapping->end;
            int result = add_range(f, index, later(regions[i].start, mapping->start), end);
            if (result)
                return result;
            // Linux 6.18 finds 512 regions at a time. If it then continues to the end, `walk_end` is still where it
            // stopped first, although it has also returned the regions after that place.
            next = later(next, end);
        }
        if (next <= *at)
            return -EINVAL;
        *at = next;
    }
    return 0;
}

// Finds the used pages from `at` to the mapping's end in /proc/self/pagemap, for kernels without PAGEMAP_SCAN.
static int read_entries(struct freezing *f, uint32_t index, uint64_t at) {
    const struct mapping *mapping = AT(f->mappings, struct mapping, index);
    uint64_t *entries = (uint64_t *)f->text.base;
    while (at < mapping->end) {
        uint64_t left = (mapping->end - at) / IMAGE_PAGE * 8, most = f->text.capacity_bytes / 2;
        long got = sys_pread(f->pagemap_fd, entries, left < most ? left : most, at / IMAGE_PAGE * 8);
        if (got <= 0)
            return fail(f, "pages", got ? got : -EIO, "/proc/self/pagemap cannot be read");
        for (long i = 0; i < got / 8; i++, at += IMAGE_PAGE) {
            if (!(entries[i] & (ENTRY_PRESENT | ENTRY_SWAPPED)) || entries[i] & ENTRY_OF_FILE)
                continue;
            int result = add_range(f, index, at, at + IMAGE_PAGE);
            if (result)
                return result;
        }
    }
    return 0;
}

// Whether only the pages of this mapping that differ from its file, or from zeros, are stored.
static int is_searched(const struct mapping *mapping) {
    return !mapping->shared && !(mapping->advice & ADVICE_WIPEONFORK);
}

int pages_find(struct freezing *f) {
    int can_scan = !(f->request->flags & FREEZE_NO_PAGEMAP_SCAN);
    for (uint32_t i = 0; i < f->mappings.count; i++) {
        const struct mapping *mapping = AT(f->mappings, struct mapping, i);
        if (!is_searched(mapping))
            continue;
        uint64_t at = mapping->start;
        int result = 0;
        int is_whole = mapping->deleted || mapping->complete; // a deleted file will be missing at the thaw
        if (is_whole)
            result = add_pages(f, i, mapping->start, mapping->end, 0);
        else if (can_scan)
            result = scan(f, i, &at);
        if (can_scan && (result == -ENOTTY || result == -EINVAL))
            can_scan = result = 0;
        if (!can_scan && !is_whole)
            result = read_entries(f, i, at);
        if (result)
            return result;
    }
    return fault_point(f, "pages");
}
