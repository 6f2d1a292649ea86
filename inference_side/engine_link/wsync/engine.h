/* libwsync_engine: the C API for inference engines. One wsync_engine is one rank of a replica,
 * attached to the sidecar of its host over a Unix socket. No ZeroMQ and no event loop library comes
 * with it.
 *
 * Life: wsync_engine_create, wsync_engine_add_tensor for each tensor of this rank,
 * wsync_engine_attach, then either wsync_engine_start (the library serves the link from a thread of
 * its own) or wsync_engine_poll from a loop of yours.
 *
 * Callbacks run on the thread that serves the link, one at a time, and return 0 for success;
 * anything else fails the step and is told to the sidecar. They must not call wsync_engine_poll,
 * _stop or _destroy. Functions that return int return 0 for success; wsync_engine_error then has
 * one sentence. wsync_engine_report_* and _status may be called from any thread, the others from
 * the owner's. While a version is loaded, helper threads of the library may write to the tensors'
 * memory too, as many as the sidecar allows this rank: none when its engines share few cores.
 *
 * fork: the parent goes on as if nothing had happened, and keeps all of its handles. Its child has
 * nothing of this library: its descriptors are closed there before fork returns, so the sidecar
 * sees the parent end whether the child lives or not. The memory of versions is not mapped in the
 * child: reading what ADOPT has given is a SIGSEGV there. (Destinations of PIECES are memory of
 * yours: the child has its copy.) A handle of the parent is of no use in the child: functions that
 * return int fail, wsync_engine_error says why, wsync_engine_status is all zero, wsync_engine_fd is
 * -1, and wsync_engine_report_*, _stop and _destroy do nothing, so that exit handlers and
 * destructors may call them. What the handle takes of the child's memory stays until the child
 * ends. The child may fork again, exec, or make handles of its own. One that is forked inside a
 * callback ends or execs there, and does not return from it. Through vfork and posix_spawn nothing
 * passes the exec. clone, _Fork and a fork by syscall() do not call what pthread_atfork has
 * registered: such a child keeps the link open until it ends or execs, and the parent's death is
 * not seen until then. */
#ifndef WSYNC_ENGINE_H
#define WSYNC_ENGINE_H

#include <wsync/types.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct wsync_engine wsync_engine;

typedef enum {
  WSYNC_TAKE_PIECES = 0, /* the library copies into `destination` of each tensor */
  WSYNC_TAKE_WHOLE = 1,  /* load_layer gets complete tensors in memory of the library */
  WSYNC_TAKE_ADOPT = 2   /* load_layer gets read-only pointers to use in place */
} wsync_take;

typedef enum {
  WSYNC_STATE_LOADING = 0, /* holds nothing yet */
  WSYNC_STATE_SERVING = 1,
  WSYNC_STATE_PAUSED = 2,
  WSYNC_STATE_LOADED = 3, /* every byte has come, commit has not */
  WSYNC_STATE_TAINTED = 4 /* the memory matches no version */
} wsync_state;

/* Where the destinations of a rank's tensors are. */
typedef enum {
  WSYNC_DEVICE_HOST = 0,
  WSYNC_DEVICE_CUDA = 1 /* in the memory of a GPU; WSYNC_TAKE_PIECES only */
} wsync_device;

typedef enum { WSYNC_PAUSE_ABORT = 0, WSYNC_PAUSE_WAIT = 1, WSYNC_PAUSE_KEEP = 2 } wsync_pause_mode;

/* A tensor of a layer that has come: index in the order of wsync_engine_add_tensor. */
typedef struct {
  uint32_t tensor;
  const void* data; /* CUDA: the device pointer that was given as its destination */
  uint64_t bytes;
} wsync_layer_tensor;

typedef struct {
  /* Leader only: stop serving at a step that all ranks agree on; return at once and call
   * wsync_engine_report_paused when stopped (every rank does). */
  int (*pause)(void* user, wsync_pause_mode mode, uint32_t deadline_ms);
  /* The weights are about to change. May be NULL. */
  int (*load_begin)(void* user, wsync_version version);
  /* A complete layer, in layer order. PIECES: the bytes lie at their destinations (may be NULL).
   * WHOLE: `data` is valid during the call. ADOPT: until another version has been committed. */
  int (*load_layer)(void* user, wsync_version version, uint32_t layer,
                    const wsync_layer_tensor* tensors, size_t count);
  /* Every byte has come and is proven; still paused. */
  int (*commit)(void* user, wsync_version version);
  /* Leader only: serve. Also withdraws a pause that has not happened yet. */
  int (*resume)(void* user);
  /* WHOLE only, may be NULL: give bytes of a tensor back as held, for `wsync verify`. */
  int (*read_tensor)(void* user, uint32_t tensor, uint64_t offset, void* out, uint64_t bytes);
} wsync_engine_callbacks;

typedef struct {
  const char* socket_path; /* of the sidecar's engine socket, absolute */
  const char* replica;     /* name of the replica, 1 to 128 bytes */
  uint32_t rank;
  uint32_t world_size;
  int leader;      /* 1 on exactly one rank of the replica */
  uint32_t device; /* index of the sidecar's device */
  wsync_take take;
  int serving; /* 1: serves weights of its own (no version) when it attaches */
  wsync_engine_callbacks callbacks;
  void* user; /* given to each callback */
  /* CUDA: the library copies with a stream of its own, in the primary context of that GPU, and a
   * layer is told, or a version committed, when no copy is under way any more: kernels of yours
   * that begin after that read the new weights. Yours that read the weights have ended when you
   * report a pause. libwsync_cuda.so is loaded for it, by wsync_engine_attach. */
  wsync_device weights_on;
  int gpu; /* CUDA: which one, as this process numbers those that it sees; the sidecar's device
              must be on the same */
} wsync_engine_options;

typedef struct {
  const char* name;  /* as in the checkpoint */
  const char* dtype; /* as in safetensors: "BF16", "F32", "F8_E4M3", ... */
  const uint64_t* shape;
  size_t shape_count; /* full shape, not this rank's part */
  const wsync_range* ranges;
  size_t range_count; /* 0: the whole tensor */
  void* destination;  /* PIECES: the rank's part, dense and row-major; it stays in place while
                         attached. CUDA: a device pointer, the whole part inside one allocation
                         (of cudaMalloc, cuMemAlloc or a framework's pool) */
} wsync_tensor;

typedef struct {
  int attached;
  wsync_state state;
  wsync_version active;
  uint64_t refusals; /* frames and commands that were refused */
} wsync_engine_state;

/* Copies the options. NULL when memory is short, or a path, a name or a needed callback is missing.
 */
WSYNC_API wsync_engine* wsync_engine_create(const wsync_engine_options* options);
/* Before wsync_engine_attach; copies everything but the destination's bytes. */
WSYNC_API int wsync_engine_add_tensor(wsync_engine* engine, const wsync_tensor* tensor);
/* Checks the description, and on a GPU that each destination is memory of it (the error names the
 * tensor that is not), and makes the link; connects, and connects again after a loss, while it is
 * served. */
WSYNC_API int wsync_engine_attach(wsync_engine* engine);
/* Serves the link from a thread of the library. Once: fails when it was started or stopped before.
 */
WSYNC_API int wsync_engine_start(wsync_engine* engine);
/* Or: wait timeout_ms at most (-1: without end) and do what is due. While tensors are read back for
 * `wsync verify`, a call reads for about 2 ms, and one tensor at least: a loop that calls this once
 * for each of its steps gives that much of each step until all have been read. */
WSYNC_API int wsync_engine_poll(wsync_engine* engine, int timeout_ms);
/* Readable when wsync_engine_poll has something to do; -1 before wsync_engine_attach. */
WSYNC_API int wsync_engine_fd(const wsync_engine* engine);
/* Stopped serving after `step`. */
WSYNC_API void wsync_engine_report_paused(wsync_engine* engine, uint64_t step);
/* Followers: serving again, beginning with `step`. */
WSYNC_API void wsync_engine_report_running(wsync_engine* engine, uint64_t step);
WSYNC_API wsync_engine_state wsync_engine_status(const wsync_engine* engine);
/* The last failure as one sentence, "" when there was none. Valid until the next call for this
 * engine. */
WSYNC_API const char* wsync_engine_error(wsync_engine* engine);
/* Ends the thread of wsync_engine_start, after the callback that runs. */
WSYNC_API void wsync_engine_stop(wsync_engine* engine);
/* Stops, detaches and frees; NULL is allowed. Adopted pointers are void afterwards. Nothing in a
 * forked child. */
WSYNC_API void wsync_engine_destroy(wsync_engine* engine);

#ifdef __cplusplus
}
#endif

#endif
