/* Part of libwsync_engine: reads versions of the weights without being an engine. A reader has no
 * replica, takes no part in a switch, and is never waited for: evaluation jobs, converters, and
 * servers that load weights in their own way.
 *
 * Usage: wsync_reader_create; then wsync_reader_open, wsync_reader_tensor for each tensor, and
 * wsync_reader_close, as often as wanted; at last wsync_reader_destroy.
 *
 * Every byte of a version that opens has been compared with the digest that its trainer published.
 * The memory is the sidecar's own staged copy, mapped read-only: nothing is copied. While a version
 * is open, its memory is not written, so a reader that keeps one open for long costs its host the
 * memory of that version. It delays neither trainer nor engines.
 *
 * A version may be read before it is decided (by its step), and may then never be served: a publish
 * can fail after it has been staged.
 *
 * Thread: one thread at a time for each reader. wsync_reader_open may wait; all other functions
 * return at once. Functions that return int return 0 for success; after another result
 * wsync_reader_error returns one sentence. fork: a child cannot use the reader of its parent
 * (functions fail, destroy does nothing), and the memory of a version is not mapped there. */
#ifndef WSYNC_READER_H
#define WSYNC_READER_H

#include <wsync/engine.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct wsync_reader wsync_reader;

/* Which version wsync_reader_open opens. All zero: the one that is served now. */
typedef struct {
  int has_step;
  uint64_t step;       /* with has_step: the staged version of this step; decided or not */
  wsync_version after; /* otherwise: the version that the replicas of this host serve or switch to,
                        * as soon as it is not this one. 0.0: whichever it is. So the version that
                        * was opened last gives the next one. */
} wsync_reader_want;

/* wsync_reader_open: the time has passed. The next call with the same wish continues to wait. */
enum { WSYNC_READER_TIMEOUT = -2 };

/* `socket_path`: of the sidecar's engine socket, absolute. `name`: of this reader, 1 to 128 bytes,
 * for the sidecar's log. Both are copied. Returns NULL if one of them is missing or not valid, or
 * if there is no memory. It does not connect. */
WSYNC_API wsync_reader* wsync_reader_create(const char* socket_path, const char* name);
/* Waits for the version at most timeout_ms (-1: without limit), also for a sidecar that does not
 * run yet or has restarted, and opens it. `opened` may be NULL. -1: refused, for example because a
 * later step is staged and the wanted one is not, or because a version is open already. */
WSYNC_API int wsync_reader_open(wsync_reader* reader, const wsync_reader_want* want, int timeout_ms,
                                wsync_version* opened);
/* The number of tensors of the open version. */
WSYNC_API int wsync_reader_count(wsync_reader* reader, uint32_t* count);
/* Describes a tensor of the open version, in layer order, and gives its bytes: dense and row-major.
 * All pointers are valid until wsync_reader_close. `info` and `data` may be NULL. */
WSYNC_API int wsync_reader_tensor(wsync_reader* reader, uint32_t tensor, wsync_tensor_info* info,
                                  const void** data);
/* Gives the version back; its pointers are invalid then. Does nothing if none is open. */
WSYNC_API void wsync_reader_close(wsync_reader* reader);
/* The last failure as one sentence; "" if there was none. Valid until the next call. */
WSYNC_API const char* wsync_reader_error(wsync_reader* reader);
/* Closes and frees; NULL is allowed. */
WSYNC_API void wsync_reader_destroy(wsync_reader* reader);

#ifdef __cplusplus
}
#endif

#endif
