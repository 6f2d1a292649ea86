/* libwsync_trainer: the C API for trainers. One wsync_trainer is one rank of a trainer. Rank 0
 * coordinates the fleet; the other ranks of the same host pass their shards to rank 0, and those of
 * other hosts (the setting `leader`) serve them to sidecars themselves.
 *
 * Order of calls: wsync_trainer_create, wsync_trainer_add_tensor for each tensor (or part of one)
 * that this rank has, wsync_trainer_start, then wsync_trainer_publish after each training step.
 *
 * Without a copy: between wsync_trainer_begin and wsync_trainer_end a trainer writes a version
 * straight to where engines read it. Each tensor is put, in one or more parts, which are converted
 * to the published dtype and summed in the same pass; or it is written through a pointer.
 *
 * Weights in the memory of a GPU are copied from there straight to where engines read them, by a
 * stream of the library in the primary context of that GPU; no other copy is made on the host. Set
 * data_on and gpu where the data is described. The library loads libwsync_cuda.so for that, and
 * pins the memory that it copies to when it is first used, which takes about 0.1 s per GiB. If the
 * system does not allow that, it says so once in the log, and copies through buffers.
 *   - Order: your kernels that write the weights must have ended before the call: synchronise them,
 *     or give their `stream`, and the library waits for it. Your kernels may change the weights
 * when a publish is snapshotted, or when the put has returned.
 *   - Memory that was freed is found when it is next copied, and refused; do not free it during a
 *     publish. A GPU that fails makes the publish fail with its error, and every later one that
 *     needs it: the process must be restarted. The fleet keeps what it serves.
 *   - A tensor that is put in another dtype than it is published in is converted by the GPU before
 * it is copied, except with scales, and if its address is not aligned to its elements: then by the
 * host.
 *
 * A publish is `snapshotted` when the weights of this rank may be overwritten, `staged` when every
 * byte is there and its sums are verified on the inference side, and `committed` when the replicas
 * serve it. It may also be superseded (a newer publish replaced it while it waited) or fail, with a
 * reason. Every wait has a deadline (`deadlines` of the configuration), except for your own
 * callbacks.
 *
 * Several ranks: every rank publishes every step, under the same, increasing number. The version
 * exists only if all ranks have snapshotted that step. Otherwise the publish fails on every rank,
 * and the reason names the rank and, if one is the cause, the tensor. Ranks meet in `run_dir`, so
 * all must use the same one. Cost: rank 0 copies its part once. Another rank copies its part into
 * its own memory (two buffers of its part, in use from the first publish on); its publish then
 * returns, and rank 0 copies from there into the version. Each rank therefore owns its snapshot, no
 * process writes memory of another one, and a rank that stops or dies never changes a version.
 *
 * Threads: the library has its own threads, with all signals blocked. Every function may be called
 * from any thread, except create and destroy; add_tensor and clear_tensors from one thread at a
 * time. Logs go to standard error, as set in `log` of the configuration.
 *
 * fork: the parent is not affected and keeps all of its handles. The child inherits nothing of this
 * library: before fork returns there, sockets, ports, lock files and arenas are closed, and the
 * arenas are not mapped. A handle of the parent cannot be used in the child: its functions return
 * WSYNC_INVALID_INPUT with a sentence, and wsync_trainer_clear_tensors and _destroy do nothing, so
 * that exit handlers and destructors may call them. The memory of the handle in the child is not
 * freed until the child ends. The child may fork again, exec, or create its own handles. A child
 * that is forked inside a `read` must end or exec there, and must not return from it. With vfork
 * and posix_spawn, nothing is inherited across the exec. clone, _Fork and a fork by syscall() do
 * not call the handlers of pthread_atfork: such a child keeps sockets, ports and lock files in use
 * until it ends or execs, and until then the parent's death is not detected.
 *
 * Functions that return a wsync_code return WSYNC_OK or the kind of failure; wsync_trainer_error
 * then returns one sentence. */
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
  WSYNC_REFUSED = 3, /* refused by the inference side or another rank; nothing changed */
  WSYNC_BUSY = 4,    /* no free snapshot, or another process has the address */
  WSYNC_DEADLINE = 5,
  WSYNC_PEER_LOST = 6,
  WSYNC_FENCED = 7, /* a newer trainer controls the fleet */
  WSYNC_DIGEST_MISMATCH = 8,
  WSYNC_RESOURCE_EXHAUSTED = 9,
  WSYNC_CANCELLED = 10,
  WSYNC_IO = 11,
  WSYNC_INTERNAL = 12,
  WSYNC_PARTIAL = 13 /* decided, but not every replica serves it; the switch continues */
} wsync_code;

typedef struct {
  const char* config_file; /* YAML, as for `wsync trainer -c`; NULL: the defaults */
  const char* const*
      settings; /* "key=value"; overrides WSYNC_KEY in the environment and the file */
  size_t setting_count;
  uint32_t rank;
  uint32_t world_size; /* 0 counts as 1 */
} wsync_trainer_options;

/* Fills `out` with `bytes` bytes of this rank's part from `offset` on. Returns 0 on success. Called
 * by several threads at the same time. The same bytes may be asked for twice: when they were
 * compared with the version before, and too much had changed (`patch.in_place`). */
typedef int (*wsync_read_tensor)(void* user, uint64_t offset, void* out, uint64_t bytes);

typedef struct {
  const char* name;  /* the engines' name */
  const char* dtype; /* as in safetensors: "BF16", "F32", "F8_E4M3", ... */
  const uint64_t* shape;
  size_t shape_count;        /* full shape, not this rank's part */
  const wsync_range* ranges; /* the rank's part: one range along one dimension */
  size_t range_count;        /* 0: the whole tensor */
  const void* data;          /* this rank's part, dense and row-major; NULL: calls `read` */
  wsync_read_tensor read;    /* NULL, like `data`: it is written between begin and end */
  void* user;                /* passed to `read` */
  wsync_device data_on;      /* where `data` is */
  int gpu; /* CUDA: index of the GPU among those that this process sees. The whole part is inside
            * one allocation of that GPU */
  const void* stream; /* CUDA: a CUstream of the GPU's primary context. Each publish first waits up
                       * to 60 s for the work that was submitted to it. NULL: that has ended; a
                       * per-thread default stream is not allowed */
} wsync_trainer_tensor;

typedef uint64_t wsync_publish; /* identifies a publish; 0: none */
typedef uint64_t wsync_draft;   /* identifies a version that is being written; 0: none */

/* Bytes of one tensor, or of a part of it. */
typedef struct {
  const char* name;
  const char* dtype; /* of `data`. F32, F16 and BF16 are converted into each other and to F8_E4M3,
                      * rounded to nearest, ties to even; all others must be the published dtype */
  const char* publish_dtype; /* NULL: as described, or for a tensor that is not, `dtype` */
  const uint64_t* shape;
  size_t shape_count;        /* full shape of the tensor */
  const wsync_range* ranges; /* of the full tensor, inside of this rank's part; at most one. Parts
                              * of one tensor have ranges of one dimension */
  size_t range_count;        /* 0: all that this rank has */
  const void* data;          /* the part, dense and row-major; may be reused after the call */
  /* Conversion to F8_E4M3: a published value times its scale is the weight. Larger values than 448
   * times the scale are limited. */
  const float* scales;
  size_t scale_count; /* 0: the scale is 1; 1: of the whole part; otherwise one for each block of
                       * 128 x 128 of the last two dimensions, row-major */
  int compute_scales; /* 1: the scale of each block is its largest magnitude / 448, and is put into
                       * the F32 tensor `name`_scale_inv. `scale_count` is then 0 */
  wsync_device data_on; /* where `data` is. `scales` are on the host. A part with scales, and one
                         * along another dimension than the first that is converted, is copied to
                         * the host as a whole first */
  int gpu;              /* CUDA: as for wsync_trainer_tensor, and `stream` too */
  const void* stream;   /* may be the default stream of the calling thread */
} wsync_trainer_part;

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
  wsync_code code; /* if failed: the kind of failure */
  uint64_t step;
  wsync_version version;      /* 0.0 until the version exists: it waits for sidecars */
  uint64_t content_digest[2]; /* low, high; set when it has ended */
  uint64_t bytes;             /* of the whole model; set when it has ended */
  uint64_t snapshot_ns; /* this rank's copy; rank 0: until the shards of all ranks are copied */
  uint64_t staged_ns;
  uint64_t paused_ns;   /* maximum of all replicas */
  uint32_t replicas;    /* number that have committed */
  uint64_t done_bytes;  /* of the current phase, on rank 0 */
  uint64_t total_bytes; /* 0: not known yet */
  char reason[1024]; /* if failed or superseded, or if it waits for a second or more: one sentence
                      * with what it waits for; otherwise "" */
} wsync_publish_status;

typedef struct {
  wsync_version from;
  wsync_version to;
  int partial; /* 1: decided, but not every replica has acknowledged; the error names the missing */
} wsync_rollback;

/* Reads and checks the configuration; `*trainer` is NULL on failure. `checkpoint` and `watch` of
 * the configuration are ignored. WSYNC_INVALID_INPUT: for an unknown key the sentence also has the
 * most similar known key. */
WSYNC_API wsync_code wsync_trainer_create(const wsync_trainer_options* options,
                                          wsync_trainer** trainer);
/* Copies the description, not the bytes: `data`, `user` and `stream` must stay valid until the last
 * publish with them is snapshotted or has ended. A tensor is part of later publishes only. With
 * data on a GPU: WSYNC_REFUSED, with what is missing, without libwsync_cuda.so, a driver or that
 * GPU; WSYNC_INVALID_INPUT if `data` is not memory of that GPU, or if data_on says that it is
 * memory of the host and it is not. */
WSYNC_API wsync_code wsync_trainer_add_tensor(wsync_trainer* trainer,
                                              const wsync_trainer_tensor* tensor);
/* Removes all tensors from later publishes. */
WSYNC_API void wsync_trainer_clear_tensors(wsync_trainer* trainer);
/* Rank 0: opens its addresses; WSYNC_BUSY if another trainer uses them. A command that uses them
 * and ends by itself, such as `wsync push`, is awaited for `deadlines.publish` at most. Other
 * ranks: begins to connect to rank 0, which need not be running yet. */
WSYNC_API wsync_code wsync_trainer_start(wsync_trainer* trainer);

/* Publishes the current weights. Returns when they may be overwritten (state SNAPSHOTTED or later),
 * or with the reason why there is no snapshot. What becomes of the publish afterwards is told by
 * wsync_trainer_wait and _poll only. It waits for no sidecar and no engine: until enough of them
 * are there, the newest snapshot is kept, and `reason` of its status says what it waits for. The
 * same happens if all sidecars are lost before the version is decided. The call waits for memory at
 * most `deadlines.snapshot` (WSYNC_BUSY, with the processes that still read; the next publish may
 * succeed), and for the copy until `deadlines.publish`. `step` is at most 2^62 - 1, which leaves
 * room for later versions: WSYNC_INVALID_INPUT if it is higher. 0 selects the next free step; it is
 * allowed with one rank only. `*publish` (may be NULL) is set to the publish. */
WSYNC_API wsync_code wsync_trainer_publish(wsync_trainer* trainer, uint64_t step,
                                           wsync_publish* publish);
/* Returns at once. The weights must not change until the publish is SNAPSHOTTED or has ended. */
WSYNC_API wsync_code wsync_trainer_publish_async(wsync_trainer* trainer, uint64_t step,
                                                 wsync_publish* publish);
/* Begins a version that the caller writes, and takes memory for it: WSYNC_BUSY if no arena is free
 * within `deadlines.snapshot`, with the processes that still read. The version has the tensors that
 * wsync_trainer_add_tensor has described; if there are none, the parts of the first version
 * describe them (one rank only), and are kept in memory of their own until its end. One version can
 * be open at a time. `step` as for wsync_trainer_publish. */
WSYNC_API wsync_code wsync_trainer_begin(wsync_trainer* trainer, uint64_t step, wsync_draft* draft);
/* Writes a part. Any order, any thread, several at a time; one call uses `snapshot_threads`
 * threads. Memory of a GPU is refused as by wsync_trainer_add_tensor. Refused, with the tensor's
 * name: WSYNC_NOT_FOUND if the version has no such tensor;
 * WSYNC_INVALID_INPUT if its shape, dtype, range or scales do not fit, or a block has a value that
 * is not finite; WSYNC_REFUSED if a part of it was put already, or if the version has been ended or
 * abandoned. Nothing counts as put then. If a GPU has failed, it may still write to the version,
 * which can only be abandoned then. */
WSYNC_API wsync_code wsync_trainer_put(wsync_trainer* trainer, wsync_draft draft,
                                       const wsync_trainer_part* part);
/* Writes `count` parts without scales, with the threads for all of them together: many small
 * tensors take as long as one large one. After an error none of them counts as put, and `*failed`
 * (may be NULL) is the index of the part that the sentence is about; `count` if it is about none.
 * In a version that nobody has described, the parts before that one count as put. Errors as for
 * wsync_trainer_put. */
WSYNC_API wsync_code wsync_trainer_put_all(wsync_trainer* trainer, wsync_draft draft,
                                           const wsync_trainer_part* parts, size_t count,
                                           size_t* failed);
/* Sets `*data` to the memory of a tensor, `*bytes` large: this rank's part, dense and row-major, in
 * the published dtype. Write all of it before wsync_trainer_end, copies of a device included. The
 * pointer is invalid after that, and after wsync_trainer_abandon: a write ends the process with
 * SIGSEGV, or changes a later version. WSYNC_REFUSED if a part of the tensor was put;
 * WSYNC_NOT_FOUND if nobody has described it. */
WSYNC_API wsync_code wsync_trainer_map(wsync_trainer* trainer, wsync_draft draft, const char* name,
                                       void** data, uint64_t* bytes);
/* Publishes what was written. Returns as wsync_trainer_publish: the time that it takes is that of
 * summing what was written through pointers, with `snapshot_threads` threads. WSYNC_REFUSED if a
 * tensor is not complete, with its name, or if a part is being put; nothing is published, and the
 * version stays open. A version without a description is checked here as a whole: after an error
 * with the name of a tensor it can only be abandoned. If the step is refused, the version is
 * dropped. */
WSYNC_API wsync_code wsync_trainer_end(wsync_trainer* trainer, wsync_draft draft,
                                       wsync_publish* publish);
/* Drops a version that has not been ended. No put of it may run. */
WSYNC_API wsync_code wsync_trainer_abandon(wsync_trainer* trainer, wsync_draft draft);
/* Returns the status. The last 1024 publishes that have ended are kept. */
WSYNC_API wsync_code wsync_trainer_poll(wsync_trainer* trainer, wsync_publish publish,
                                        wsync_publish_status* status);
/* Waits up to timeout_ms until the publish is in `state` or a later one, or has ended. -1: at most
 * `deadlines.publish` and 5 s, in which the publish itself ends if enough sidecars and engines are
 * there; less than -1: WSYNC_INVALID_INPUT. Returns WSYNC_OK if it is SNAPSHOTTED, STAGED or
 * COMMITTED as requested; WSYNC_CANCELLED if it was superseded; the code of the failure if it
 * failed (WSYNC_CANCELLED: by `wsync cancel`; WSYNC_REFUSED: every engine keeps its version;
 * WSYNC_PARTIAL: decided, so some replicas serve it, and the others go on trying); WSYNC_DEADLINE
 * if the time is over. A wait for SNAPSHOTTED succeeds if the snapshot was taken, even if the
 * publish has failed or was superseded since. `status` (may be NULL) is set in each of these cases.
 */
WSYNC_API wsync_code wsync_trainer_wait(wsync_trainer* trainer, wsync_publish publish,
                                        wsync_publish_state state, int timeout_ms,
                                        wsync_publish_status* status);
/* After a publish has failed: the first tensor that does not fit the engines, if that is why. The
 * pointers are valid until the next call of this function from this thread. */
WSYNC_API wsync_code wsync_trainer_problem(wsync_trainer* trainer, wsync_publish publish,
                                           wsync_problem* problem);
/* Rank 0: returns the fleet to version `to` (0.0: the previous one) and withdraws newer versions.
 * Waits timeout_ms, but no longer than a switch may take (`deadlines`: pause, load and commit, plus
 * 10 s); -1: waits that long. WSYNC_DEADLINE: not done in time; the rollback continues.
 * WSYNC_BUSY: an update travels, or there was no time to begin, and nothing changed; call it again.
 * WSYNC_REFUSED, with the reason: not possible, and nothing changed. WSYNC_PARTIAL, with those that
 * have not switched back yet; a replica that is suspended with all of its ranks is not one of them,
 * because it loads the version when it resumes. `result` may be NULL. */
WSYNC_API wsync_code wsync_trainer_roll_back(wsync_trainer* trainer, wsync_version to,
                                             int timeout_ms, wsync_rollback* result);
/* Returns why this trainer can no longer publish: WSYNC_FENCED if a newer trainer controls the
 * fleet or another process has replaced this rank; WSYNC_IO if its `state_dir` cannot be written.
 */
WSYNC_API wsync_code wsync_trainer_check(wsync_trainer* trainer);
/* Returns the last failure of a call from this thread as one sentence; "" if there was none. Valid
 * until the next call from this thread. */
WSYNC_API const char* wsync_trainer_error(void);
/* Stops the trainer and frees it. Waits for a running `read`. Publishes that have not ended are
 * dropped, so wait for them first. NULL is allowed. Does nothing in a forked child. */
WSYNC_API void wsync_trainer_destroy(wsync_trainer* trainer);

#ifdef __cplusplus
}
#endif

#endif
