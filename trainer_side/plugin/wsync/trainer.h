/* libwsync_trainer: the C API for trainers. One wsync_trainer is one rank of a trainer; rank 0
 * coordinates the fleet, the other ranks of the same host hand it their shards.
 *
 * Life: wsync_trainer_create, wsync_trainer_add_tensor for each tensor (or part of one) that this
 * rank has, wsync_trainer_start, then wsync_trainer_publish after each step of the training.
 *
 * A publish is `snapshotted` when the weights of this rank may be overwritten, `staged` when every
 * byte is verified on the inference side, `committed` when the replicas serve it. It may also be
 * superseded (a newer one took its place while it waited) or fail, with a reason. Nothing waits
 * without a deadline (`deadlines` of the configuration), a callback of yours aside.
 *
 * Several ranks: every rank publishes every step, under the same number, which grows. The version
 * exists only when all have snapshotted that step; else the publish fails on every rank and names
 * the rank, and the tensor where it is about one. Ranks meet in `run_dir`, so they share it. What
 * it costs: rank 0 copies its part once; another rank copies its part into memory of its own (two
 * buffers of its part, in use from the first publish on), where its publish returns, and rank 0
 * copies from there into the version. So each rank owns its snapshot, no process writes memory of
 * another, and a rank that stops or dies at any point changes nothing.
 *
 * Threads: the library has threads of its own, with all signals blocked. Every function may be
 * called from any thread, but create and destroy; add_tensor and clear_tensors from one at a time.
 * Logs go to standard error as `log` of the configuration says.
 *
 * fork: the parent goes on as if nothing had happened, and keeps all of its handles. Its child has
 * nothing of this library: sockets, ports, lock files and arenas are closed there before fork
 * returns, and the arenas are not mapped. A handle of the parent is of no use in the child: its
 * functions are refused (WSYNC_INVALID_INPUT, and a sentence), and wsync_trainer_clear_tensors and
 * _destroy do nothing, so that exit handlers and destructors may call them. What the handle takes
 * of the child's memory stays until the child ends. The child may fork again, exec, or make handles
 * of its own. One that is forked inside a `read` ends or execs there, and does not return from it.
 * Through vfork and posix_spawn nothing passes the exec. clone, _Fork and a fork by syscall() do
 * not call what pthread_atfork has registered: such a child keeps sockets, ports and lock files in
 * use until it ends or execs, and the parent's death is not seen until then.
 *
 * Functions that return a wsync_code return WSYNC_OK or what kind of failure it was;
 * wsync_trainer_error then has one sentence. */
#ifndef WSYNC_TRAINER_H
#define WSYNC_TRAINER_H

#include <wsync/types.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct wsync_trainer wsync_trainer;

typedef enum {
  WSYNC_OK = 0,
  WSYNC_INVALID_INPUT = 1, /* an argument, a configuration or a description breaks a rule */
  WSYNC_NOT_FOUND = 2,
  WSYNC_REFUSED = 3, /* the inference side or another rank says no; nothing changed */
  WSYNC_BUSY = 4,    /* no free snapshot, or another process has the address */
  WSYNC_DEADLINE = 5,
  WSYNC_PEER_LOST = 6,
  WSYNC_FENCED = 7, /* a newer trainer has the fleet */
  WSYNC_DIGEST_MISMATCH = 8,
  WSYNC_RESOURCE_EXHAUSTED = 9,
  WSYNC_CANCELLED = 10,
  WSYNC_IO = 11,
  WSYNC_INTERNAL = 12
} wsync_code;

typedef struct {
  const char* config_file;     /* YAML, as for `wsync trainer -c`; NULL: the defaults */
  const char* const* settings; /* "key=value", over WSYNC_KEY in the environment, over the file */
  size_t setting_count;
  uint32_t rank;
  uint32_t world_size; /* 0 counts as 1 */
} wsync_trainer_options;

/* Fills `out` with `bytes` bytes of this rank's part from `offset` on; 0 for success. Called by
 * several threads at a time. */
typedef int (*wsync_read_tensor)(void* user, uint64_t offset, void* out, uint64_t bytes);

typedef struct {
  const char* name;  /* as the engines name it */
  const char* dtype; /* as in safetensors: "BF16", "F32", "F8_E4M3", ... */
  const uint64_t* shape;
  size_t shape_count;        /* full shape, not this rank's part */
  const wsync_range* ranges; /* what this rank has: one range along one dimension */
  size_t range_count;        /* 0: the whole tensor */
  const void* data;          /* this rank's part, dense and row-major, or NULL: `read` is called */
  wsync_read_tensor read;
  void* user; /* given to `read` */
} wsync_trainer_tensor;

typedef uint64_t wsync_publish; /* names a publish; 0 names none */

typedef enum {
  WSYNC_PUBLISH_PENDING = 0, /* the weights are still being read */
  WSYNC_PUBLISH_SNAPSHOTTED = 1,
  WSYNC_PUBLISH_STAGED = 2,
  WSYNC_PUBLISH_COMMITTED = 3,
  WSYNC_PUBLISH_SUPERSEDED = 4,
  WSYNC_PUBLISH_FAILED = 5
} wsync_publish_state;

typedef struct {
  wsync_publish_state state;
  wsync_code code; /* failed: what kind of failure */
  uint64_t step;
  wsync_version version;      /* 0.0 until the version exists */
  uint64_t content_digest[2]; /* low, high; once it has ended */
  uint64_t bytes;             /* of the whole model; once it has ended */
  uint64_t snapshot_ns;       /* this rank's copy; rank 0: until all ranks' shards are copied */
  uint64_t staged_ns;
  uint64_t paused_ns;   /* of the replica that was paused longest */
  uint32_t replicas;    /* that have committed */
  uint64_t done_bytes;  /* of the phase that runs, on rank 0 */
  uint64_t total_bytes; /* 0: not known yet */
  char reason[1024];    /* failed or superseded: one sentence, else "" */
} wsync_publish_status;

typedef struct {
  wsync_version from;
  wsync_version to;
  int partial; /* 1: decided, but not every replica has acknowledged; the error names them */
} wsync_rollback;

/* Reads and checks the configuration; `*trainer` is NULL on failure. `checkpoint` and `watch` of
 * the configuration mean nothing here. WSYNC_INVALID_INPUT names an unknown key and the nearest. */
WSYNC_API wsync_code wsync_trainer_create(const wsync_trainer_options* options,
                                          wsync_trainer** trainer);
/* Copies the description, not the bytes: `data` and `user` stay valid until the last publish with
 * them is snapshotted or has ended. A tensor that is added later is part of later publishes only.
 */
WSYNC_API wsync_code wsync_trainer_add_tensor(wsync_trainer* trainer,
                                              const wsync_trainer_tensor* tensor);
/* Forgets every tensor, for the publishes to come. */
WSYNC_API void wsync_trainer_clear_tensors(wsync_trainer* trainer);
/* Rank 0: opens its addresses; WSYNC_BUSY when another trainer has them. Other ranks: begins to
 * look for rank 0, which need not be there yet. */
WSYNC_API wsync_code wsync_trainer_start(wsync_trainer* trainer);

/* Publishes the weights as they are now and returns when they may be overwritten (state
 * SNAPSHOTTED or later), or with the code of the failure, within `deadlines.publish`. `step` 0 is
 * the next free one, with one rank only. `*publish` (may be NULL) names it from then on. */
WSYNC_API wsync_code wsync_trainer_publish(wsync_trainer* trainer, uint64_t step,
                                           wsync_publish* publish);
/* Returns at once; the weights stay as they are until the publish is SNAPSHOTTED or has ended. */
WSYNC_API wsync_code wsync_trainer_publish_async(wsync_trainer* trainer, uint64_t step,
                                                 wsync_publish* publish);
/* Where it stands. The last 1024 publishes that have ended are remembered. */
WSYNC_API wsync_code wsync_trainer_poll(wsync_trainer* trainer, wsync_publish publish,
                                        wsync_publish_status* status);
/* Waits timeout_ms (-1: without end; the publish itself has one, `deadlines.publish` after it
 * began; less than -1 is WSYNC_INVALID_INPUT) until it is in `state` or a later one, or has ended;
 * `status` may be NULL. WSYNC_OK: it is SNAPSHOTTED, STAGED or COMMITTED as asked for; superseded:
 * WSYNC_CANCELLED; failed: the code of the failure (WSYNC_CANCELLED: by `wsync
 * cancel`); WSYNC_DEADLINE: not yet. `status` is filled in
 * each of these cases. */
WSYNC_API wsync_code wsync_trainer_wait(wsync_trainer* trainer, wsync_publish publish,
                                        wsync_publish_state state, int timeout_ms,
                                        wsync_publish_status* status);
/* Rank 0: brings the fleet back to `to` (0.0: the previous version) and withdraws what is newer.
 * Waits timeout_ms, but no longer than a switch may take (`deadlines`: pause, load and commit, and
 * 10 s); -1 is that long; WSYNC_DEADLINE: not done by then, and it goes on. WSYNC_REFUSED with the
 * reason, when it cannot or is only partial; `result` may be NULL. */
WSYNC_API wsync_code wsync_trainer_roll_back(wsync_trainer* trainer, wsync_version to,
                                             int timeout_ms, wsync_rollback* result);
/* Why this trainer publishes nothing any more: WSYNC_FENCED when a newer one has the fleet, or when
 * another process has taken the place of this rank; WSYNC_IO when its `state_dir` cannot be
 * written. */
WSYNC_API wsync_code wsync_trainer_check(wsync_trainer* trainer);
/* The last failure of a call from this thread as one sentence, "" when there was none. Valid until
 * the next call from this thread. */
WSYNC_API const char* wsync_trainer_error(void);
/* Stops and frees; waits for a `read` that runs. Publishes that have not ended are dropped: wait
 * for them before. NULL is allowed. Nothing in a forked child. */
WSYNC_API void wsync_trainer_destroy(wsync_trainer* trainer);

#ifdef __cplusplus
}
#endif

#endif
