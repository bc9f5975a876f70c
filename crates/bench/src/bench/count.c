/* Counts what a program asks of its allocator, without a change to the program: preloaded (LD_PRELOAD) before the C library.
 * The count lies in the file that BRODO_ALLOCATIONS names, for the benchmark to read. Only the program whose name
 * BRODO_ALLOCATIONS_OF has counts, not the commands that it starts or that start it. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);

static _Atomic unsigned long nowhere;
static _Atomic unsigned long *count = &nowhere;

__attribute__((constructor)) static void begin(void) {
  const char *file = getenv("BRODO_ALLOCATIONS");
  const char *name = getenv("BRODO_ALLOCATIONS_OF");
  if (!file || !name || strcmp(program_invocation_short_name, name) != 0) return;
  int fd = open(file, O_RDWR | O_CLOEXEC);
  if (fd < 0) return;
  void *page = mmap(NULL, sizeof *count, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  if (page != MAP_FAILED) count = page;
}

void *malloc(size_t size) { ++*count; return __libc_malloc(size); }
void *calloc(size_t n, size_t size) { ++*count; return __libc_calloc(n, size); }
void *realloc(void *old, size_t size) { ++*count; return __libc_realloc(old, size); }
void *aligned_alloc(size_t alignment, size_t size) { ++*count; return __libc_memalign(alignment, size); }

int posix_memalign(void **out, size_t alignment, size_t size) {
  ++*count;
  *out = __libc_memalign(alignment, size);
  return *out ? 0 : ENOMEM;
}
