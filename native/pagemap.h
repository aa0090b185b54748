// Runs in freeze and in thawed copies. The kernel's call that lists pages of this process by their state.
// Source: include/uapi/linux/fs.h, PAGEMAP_SCAN (Linux 6.7).

#ifndef THAWD_PAGEMAP_H
#define THAWD_PAGEMAP_H

#include <stdint.h>

struct page_region {
    uint64_t start, end, categories;
};
struct pm_scan_arg {
    uint64_t size, flags, start, end, walk_end, vec, vec_len, max_pages;
    uint64_t category_inverted, category_mask, category_anyof_mask, return_mask;
};
#define PAGEMAP_SCAN_REQUEST 0xc0606610ul // _IOWR('f', 16, struct pm_scan_arg)
#define PAGE_IS_FILE 4
#define PAGE_IS_PRESENT 8
#define PAGE_IS_SWAPPED 16
#define PAGE_IS_PFNZERO 32
_Static_assert(sizeof(struct pm_scan_arg) == 96, "part of the ioctl's number");

#endif
