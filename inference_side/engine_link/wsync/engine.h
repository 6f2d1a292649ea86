/* libwsync_engine: the C API for inference engines. One wsync_engine is one rank of a replica,
 * attached to the sidecar of its host over a Unix socket. The library needs neither ZeroMQ nor an
 * event loop library.
 *
 * Usage: call wsync_engine_create, wsync_engine_report_starting if allocating the memory takes
 * long, wsync_engine_add_tensor for each tensor of this rank, and wsync_engine_attach. Then either
 * call wsync_engine_start (the library serves the link on its own thread) or call wsync_engine_poll
 * from your own loop.
 *
 * Callbacks run on the thread that serves the link, one at a time. They return 0 for success. Where
 * their comment allows it, they return WSYNC_LATER and answer with a report. Any other value fails
 * the step and is reported to the sidecar, with the sentence that wsync_engine_fail was given. They
 * must not call wsync_engine_poll, _stop or _destroy. Functions that return int return 0 for
 * success; after a failure wsync_engine_error returns one sentence on the same thread.
 * wsync_engine_report_*, _fail, _status, _refusal and _error may be called from any thread,
 * _lead_step and _follow_step from one, the others only from the owner's thread or inside a
 * callback. While a version is being loaded, helper threads of the library may also write to the
 * tensors' memory. The sidecar limits their number for this rank; there are none if its engines
 * share few cores. While the rank serves, the weights are scrubbed: they are read again, from time
 * to time and for at most 1 % of the time (scrub.interval and scrub.max_share of the sidecar), so
 * that bits that flip there are found. Just before a switch by a patch, what the patch replaces as
 * a whole is read as well, by the thread that serves the link. A thread of the library reads
 * tensors that were taken as PIECES into host memory or adopted. When the rank ceases to serve, it
 * ends with the block of 256 KiB at most that it is reading. Nothing is read from load_begin on
 * until the rank serves again, nor after wsync_engine_suspend or _stop has returned. WHOLE and
 * BORROW: read_tensor is called for it on the thread that serves the link.
 *
 * fork: the parent continues without any change and keeps all of its handles. The child has no
 * resources of this library: its copies of the library's descriptors are closed before fork
 * returns, so the sidecar notices the end of the parent even while the child lives. The memory of
 * versions is not mapped in the child: reading memory that ADOPT has given causes SIGSEGV there.
 * (Destinations of PIECES are your own memory, so the child has its copy.) A handle of the parent
 * cannot be used in the child: functions that return int fail, wsync_engine_error gives the reason,
 * wsync_engine_status returns zeros, wsync_engine_fd returns -1, and wsync_engine_report_*, _stop
 * and _destroy do nothing, so that exit handlers and destructors may call them. The memory of the
 * handle in the child is not freed until the child ends. The child may fork again, exec, or create
 * its own handles. A child that is forked inside a callback must end or exec there, and must not
 * return from the callback. With vfork and posix_spawn no descriptor survives the exec. clone,
 * _Fork and a fork by syscall() do not call the handlers of pthread_atfork: such a child keeps the
 * link open until it ends or execs, and until then the sidecar does not notice the death of the
 * parent. */
#ifndef WSYNC_ENGINE_H
#define WSYNC_ENGINE_H

#include <wsync/types.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct wsync_engine wsync_engine;

typedef enum {
  WSYNC_TAKE_PIECES = 0, /* the library copies into `destination` of each tensor */
  WSYNC_TAKE_WHOLE = 1,  /* load_layer gets complete tensors in the library's memory */
  WSYNC_TAKE_ADOPT = 2,  /* load_layer gets read-only pointers to use in place */
  WSYNC_TAKE_BORROW = 3  /* load_layer gets read-only pointers, valid until the commit: for an
                          * engine that packs or fuses the weights into memory of its own */
} wsync_take;

/* Returned by load_layer or commit: the answer follows with wsync_engine_report_loaded or
 * wsync_engine_report_committed, from any thread. */
enum { WSYNC_LATER = -30000 };

typedef enum {
  WSYNC_STATE_LOADING = 0, /* holds nothing yet */
  WSYNC_STATE_SERVING = 1,
  WSYNC_STATE_PAUSED = 2,
  WSYNC_STATE_LOADED = 3, /* every byte has arrived; not committed */
  WSYNC_STATE_TAINTED = 4 /* the memory belongs to no version */
} wsync_state;

typedef enum { WSYNC_PAUSE_ABORT = 0, WSYNC_PAUSE_WAIT = 1, WSYNC_PAUSE_KEEP = 2 } wsync_pause_mode;

/* What becomes of what the engine has computed with the old weights, such as cached prefixes. */
typedef enum {
  WSYNC_CACHES_ENGINE = 0, /* as the engine decides */
  WSYNC_CACHES_CLEAR = 1,
  WSYNC_CACHES_KEEP = 2
} wsync_cache_policy;

/* What a pause is for, so that the engine can choose what becomes of its requests and caches. */
typedef struct {
  wsync_pause_mode mode;
  uint32_t deadline_ms;      /* the sidecar resumes the old version after this time */
  wsync_version version;     /* that will be loaded; it may still be replaced by a newer one */
  uint64_t bytes;            /* of the whole version, all ranks together; 0: not known */
  wsync_cache_policy caches; /* as `caches` of the trainer says */
} wsync_pause;

/* A tensor of a complete layer. `tensor`: index in the order of wsync_engine_add_tensor; with
 * any_layout, index for wsync_engine_tensor_info. */
typedef struct {
  uint32_t tensor;
  const void* data; /* PIECES: the destination; with CUDA a device pointer. NULL: no bytes */
  uint64_t bytes;   /* at `data`: with destination_dtype, of its elements */
} wsync_layer_tensor;

typedef struct {
  /* Leader only (with led_steps it may be NULL): stop serving at a step that all ranks agree on.
   * Return at once. Every rank calls wsync_engine_report_paused when it has stopped. */
  int (*pause)(void* user, const wsync_pause* pause);
  /* The weights are about to change. May be NULL. */
  int (*load_begin)(void* user, wsync_version version);
  /* A complete layer, in layer order; each layer comes once in a load, also one in which nothing
   * has changed. Its bytes are compared with the version before commit, not before this call.
   * PIECES: the bytes are at their destinations (may be NULL). In host memory the library may write
   * only what differs from the version that this rank serves, and it compares them with the version
   * while the rank serves. So do not change these bytes yourself: the next version may not put them
   * right, and the replica would count as damaged. WHOLE: `data` is valid during the call.
   * ADOPT: it is valid until another version is committed. BORROW: it is valid until the commit of
   * this version has been answered, or until the load has failed: when a callback returns an error,
   * or another load begins. CUDA: `data` is a device pointer in memory of the library, dense and
   * row-major, at a multiple of 256 bytes. All copies to it are complete, so work that is submitted
   * in the call, on any stream, reads the new weights. The work on the GPU that reads it must be
   * complete when `data` ceases to be valid. WHOLE: submit it, and wait for its stream before you
   * return (cudaStreamSynchronize): the library writes the next layers to the same memory. BORROW:
   * wait for it before the commit is answered, and before an error is returned or reported. WHOLE
   * takes GPU memory for about two layers during a load, and BORROW for all tensors of the rank
   * until the commit, or, if it fails, until another load begins. A load for which it is not free
   * does not begin: it fails with the bytes that are needed and that are free, and the engine may
   * serve the weights that it has. ADOPT and BORROW may return WSYNC_LATER for any layer: the
   * engine has the pointers, and reads them on another thread. The layers that follow are passed
   * all the same. The load ends with one wsync_engine_report_loaded, which is due even if a later
   * layer fails. Until then the pointers stay valid, also if the sidecar is lost or has given the
   * load up. With CUDA the layers come one by one as they arrive, so report success only after the
   * last one: a success before it fails the load. If it does not come, load_given_up says so, which
   * WSYNC_LATER needs there. */
  int (*load_layer)(void* user, wsync_version version, uint32_t layer,
                    const wsync_layer_tensor* tensors, size_t count);
  /* Every byte is in place and verified. The rank stays paused. May return WSYNC_LATER. NULL is
   * allowed for a controller only. */
  int (*commit)(void* user, wsync_version version);
  /* Leader only: start serving. Also cancels a pause that has not taken effect yet. */
  int (*resume)(void* user);
  /* WHOLE and BORROW, may be NULL: return bytes of a tensor as held, for `wsync verify` and for
   * scrubs. They must be the bytes of the version, bit for bit: what differs counts as damaged
   * memory, all bytes are loaded again, and after three times in a row the replica is not used. So
   * leave it NULL if the engine has rounded or changed them. `offset` is in the rank's own part of
   * the tensor, dense and row-major. `out` is host memory, also with CUDA: the copy to it must be
   * complete on return. `wsync verify` asks for up to 1 MiB at a time, while the rank serves or is
   * paused. A scrub asks for up to 256 KiB, only while the rank serves: not once it was asked to
   * pause or has reported a pause, and then not before it has committed and serves again, unless
   * nothing was loaded. Its calls come in bursts of about 1 ms, or of one call that takes longer.
   * Their time is at most scrub.max_share of all time, so slow calls make a scrub long. What the
   * sidecar sends meanwhile waits for one call. A call that does not return holds the link up, and
   * after engine_deadline the replica is not ready. An error ends the scrub, which is repeated
   * after a minute. If that fails as well, `wsync status` says `not scrubbed` with the sentence of
   * wsync_engine_fail. Without the callback, status says `not scrubbed`, and verify says that this
   * engine cannot be read, never that it is equal. */
  int (*read_tensor)(void* user, uint32_t tensor, uint64_t offset, void* out, uint64_t bytes);
  /* May be NULL. A version is staged, and wsync_engine_tensor_info tells its tensors. An error
   * refuses it: the sidecar does not take it, and all its replicas keep what they serve. Called
   * while the engine serves, so it must return soon. */
  int (*check_version)(void* user, wsync_version version);
  /* CUDA, for an engine that returns WSYNC_LATER; otherwise it may be NULL. No further layer of
   * this load comes, although the last one is missing: the sidecar is lost, has given the load up
   * or has sent another one, or a layer has failed. Called at most once for a load. If the load is
   * not reported yet, report it with an error as soon as nothing reads its layers any more, in this
   * call or on another thread. The pointers stay valid until then, and no other load begins.
   * Without this callback, WSYNC_LATER fails a load on a GPU. */
  void (*load_given_up)(void* user, wsync_version version);
} wsync_engine_callbacks;

typedef struct {
  const char* socket_path; /* absolute path of the sidecar's engine socket */
  const char* replica;     /* name of the replica, 1 to 128 bytes */
  uint32_t rank;
  uint32_t world_size; /* ranks that have weights */
  int leader;          /* 1 on exactly one rank of the replica, or on its controller */
  uint32_t device;     /* index of the sidecar's device */
  wsync_take take;
  int serving; /* 1: serves weights without a version when it attaches */
  wsync_engine_callbacks callbacks;
  void* user; /* passed to each callback */
  /* Where the rank takes its tensors: the destinations (PIECES), or memory of the library (WHOLE,
   * BORROW). CUDA, not with ADOPT: the library copies with its own stream, in the primary context
   * of that GPU. load_layer and commit are called when their copies are complete, so your kernels
   * that begin after that read the new weights. Your kernels that read the weights must have ended
   * when you report a pause. The callbacks are called with whatever context is current on the
   * link's thread, which may be none. wsync_engine_attach loads libwsync_cuda.so for this. */
  wsync_device weights_on;
  int gpu; /* CUDA: index of the GPU among those that this process sees; the sidecar's device
              must be on the same GPU */
  /* BORROW and ADOPT: 1 takes every tensor of a version as a whole, whatever its names, dtypes and
   * shapes. wsync_engine_add_tensor is not called then. Use check_version to refuse what does not
   * fit: the sidecar cannot know it. */
  int any_layout;
  /* 1 on all ranks of a replica that has a controller, and on the controller: a process that can
   * pause and resume the replica, and has no weights. The controller sets `leader`; its `rank` is
   * ignored, and it adds no tensor. It calls wsync_engine_report_paused as each rank does. `wsync
   * verify` lists it as rank `world_size`, and `wsync status` counts it among the processes of the
   * replica. A rank that says otherwise than the others is refused. */
  int has_controller;
  /* 1 on all ranks of a replica, and on its controller, if its leader leads their steps:
   * wsync_engine_lead_step says when. `pause` and `resume` may then be NULL. If they are given,
   * they only tell what is asked for: they must not report, because the library does. */
  int led_steps;
  /* WHOLE and BORROW in host memory: 1 lets a load bring only the layers in which something has
   * changed since the version that the rank holds; load_layer is called for these, which may be
   * none. All others stay as they are, so the engine must hold every layer as it was loaded, and
   * take any of them alone. It needs read_tensor, by which the rest is looked at from time to time,
   * and load_layer must not return WSYNC_LATER. All layers come, as ever, for a rank that holds no
   * version or has not been read since it attached, if too much has changed, and once in the
   * sidecar's `scrub.interval` where layers come too often for all of them to be read in between.
   * The layers of a version are numbered as in a full load. */
  int changed_layers;
} wsync_engine_options;

typedef struct {
  const char* name;  /* as in the checkpoint */
  const char* dtype; /* as in safetensors: "BF16", "F32", "F8_E4M3", ... */
  const uint64_t* shape;
  size_t shape_count; /* full shape, not this rank's part */
  const wsync_range* ranges;
  size_t range_count; /* 0: the whole tensor */
  void* destination;  /* PIECES: the rank's part, dense and row-major; it must stay in place
                         while attached. It must not overlap that of another tensor in part, which
                         wsync_engine_attach refuses. Tied weights may have exactly the same one,
                         unless they are converted: a load fails, with their names, if a version has
                         different values of them, and such a rank takes no patches. CUDA: a device
                         pointer; the whole part must be inside one allocation (of cudaMalloc,
                         cuMemAlloc or a framework's pool). That is checked when the engine attaches
                         or resumes, and before each load and each `wsync verify`: memory that is
                         gone by then fails them, with the name of the tensor, and nothing is
                         written. It must not be freed while a load runs */
  /* PIECES: the dtype of the elements at `destination`, whose memory has the size
   * that this dtype needs; with CUDA it is aligned to an element. NULL: the same as `dtype`, which
   * is always the one in the version. F32, F16 and BF16 can be converted into each other, while
   * they are copied: rounded to the nearest value, ties to even, as torch does. What is compared
   * with the version are its own bytes, as they were read. A NaN stays a NaN; to F32 it keeps its
   * payload, otherwise the upper bits of it, and is made quiet. `wsync verify` reads a tensor back
   * that was widened (F16 or BF16 to F32); of one that was not, it says that it cannot be read,
   * never that it is equal. */
  const char* destination_dtype;
} wsync_tensor;

/* Pointers are borrowed; see wsync_engine_tensor_info. */
typedef struct {
  const char* name;      /* as in the checkpoint */
  const char* dtype;     /* as in safetensors */
  const uint64_t* shape; /* full shape */
  size_t shape_count;
  uint64_t bytes; /* of this rank's part, in the version */
} wsync_tensor_info;

typedef struct {
  int attached;
  wsync_state state;
  wsync_version active;
  uint64_t refusals; /* messages and commands that this rank has refused, and attempts to attach
                      * that its sidecar has refused */
} wsync_engine_state;

/* What the sidecar has said when it refused this rank: because its tensors do not fit the model
 * that is served, because a rank of this name is attached already, and so on. */
typedef struct {
  uint64_t number; /* counts refusals; one that only repeats the one before is not counted. 0: there
                    * was none, and the sentence is "" */
  int holds;       /* 1: no sidecar has taken the rank since */
  const char* sentence;
  wsync_problem problem; /* the tensor that does not fit, if the refusal is about one */
} wsync_refusal;

/* Copies the options. Returns NULL if there is no memory, if a path, a name or a required callback
 * is missing, or if `take` is not a wsync_take. */
WSYNC_API wsync_engine* wsync_engine_create(const wsync_engine_options* options);
/* Call before wsync_engine_attach. Copies everything except the destination's bytes. */
WSYNC_API int wsync_engine_add_tensor(wsync_engine* engine, const wsync_tensor* tensor);
/* Optional, before the memory of the tensors is allocated: tells the sidecar that this rank will
 * attach. Until it does, `wsync status`, `top` and `verify` and the answers to a push say that it
 * is starting, instead of that no engine is attached. Waits at most 0.5 s. The sidecar forgets it
 * when this handle is destroyed, when the process ends, and when the sidecar restarts. A failure
 * (no sidecar listens yet) changes nothing else: the rank may attach later all the same. */
WSYNC_API int wsync_engine_report_starting(wsync_engine* engine);
/* Checks the description and creates the link. On a GPU it also checks that each destination is
 * memory of that GPU; the error names the tensor. The link connects, and reconnects after a loss,
 * while it is being served. */
WSYNC_API int wsync_engine_attach(wsync_engine* engine);
/* Serves the link on a thread of the library. Fails if the link was started or stopped before. */
WSYNC_API int wsync_engine_start(wsync_engine* engine);
/* Call it before the memory of the weights is given away for a time, for example to a trainer on
 * the same GPU. Returns when nothing of this library touches that memory any more, and does not
 * until wsync_engine_resume: it calls no callback, and wsync_engine_poll only waits. With CUDA the
 * library has no memory of its own on the GPU then, but for the context; to free it, the call waits
 * for the kernels that run on that GPU and its peers. The rank then holds no version. A load that
 * is under way fails, with a sentence for the fleet. The pointers of ADOPT and BORROW are invalid;
 * with CUDA, the work on the GPU that reads them must be complete before the call.
 * `wsync status` says that the rank has given its memory away; it forgets that if the sidecar
 * restarts meanwhile. No update waits for the rank. Call it on all ranks of a replica when none of
 * them serves. Fails while load_layer or commit has returned WSYNC_LATER and has not been reported.
 * Owner's thread, not in a callback. */
WSYNC_API int wsync_engine_suspend(wsync_engine* engine);
/* PIECES, between wsync_engine_suspend and wsync_engine_resume: the memory of a tensor is at
 * another address when it comes back. `tensor`: index in the order of wsync_engine_add_tensor.
 * `destination`: as in wsync_tensor, of the same size; checked by wsync_engine_resume. Thread: as
 * wsync_engine_suspend. */
WSYNC_API int wsync_engine_move_tensor(wsync_engine* engine, uint32_t tensor, void* destination);
/* The memory is there again, at the addresses of the tensors; its content does not matter. With
 * CUDA it may have been unmapped and be other memory now: it is checked again, and if it is not
 * there, the call fails with the name of the tensor, and the engine stays suspended. The link
 * connects, and the newest version is loaded as into an engine that has just started. A publish for
 * which too few engines are awake (`min_replicas`) waits, and goes on now. Thread: as
 * wsync_engine_suspend. */
WSYNC_API int wsync_engine_resume(wsync_engine* engine);
/* Alternative to wsync_engine_start: waits at most timeout_ms (-1: without limit) and handles all
 * events. During a `wsync verify`, a call reads tensors back for about 2 ms, and at least one
 * tensor. A loop that calls this once per step spends that time in each step until all tensors have
 * been read. During a scrub of an engine that gives read_tensor, a call reads for about 1 ms when
 * that is due. Just before it calls `pause` for a version that comes as a patch, a call maps and
 * checks the patch. A thread of wsync_engine_start does that while the engine still serves; a loop
 * that polls waits for it between two steps. A sidecar that is not there, or that refuses the rank,
 * is no failure: the link goes on trying, and wsync_engine_refusal tells of a refusal. */
WSYNC_API int wsync_engine_poll(wsync_engine* engine, int timeout_ms);
/* Readable when wsync_engine_poll has something to do; -1 before wsync_engine_attach. */
WSYNC_API int wsync_engine_fd(const wsync_engine* engine);
/* This rank has stopped serving after `step`. */
WSYNC_API void wsync_engine_report_paused(wsync_engine* engine, uint64_t step);
/* Followers: this rank serves again, beginning with `step`. */
WSYNC_API void wsync_engine_report_running(wsync_engine* engine, uint64_t step);
/* ---- led steps ----
 *
 * All ranks of a replica must stop at the same step, and none may step under another version than
 * the others. With `led_steps` this library sees to both. The engine only carries a header from its
 * leader to the other ranks, by a way that it has already: a broadcast, a pipe, or with the work
 * that it sends for each step.
 *
 * The rule:
 *  - Between two steps, the leader calls wsync_engine_lead_step and sends the header to all other
 *    ranks. It begins the step only if the header says go. Its call says that its last step has
 *    ended: it no longer reads the weights.
 *  - Each other rank passes every header to wsync_engine_follow_step, in their order, and begins
 *    the step only if `go` is 1. Its call says that its last step has ended.
 *  - The leader does not run ahead: its step does not end before every rank has begun it, as in
 *    every step in which all ranks exchange something.
 *  - Nobody calls wsync_engine_report_paused or _running: the library does. A leader that must stop
 *    for another reason (a rank was lost, or has refused a header) calls _report_paused; the next
 *    header then tells the others.
 *  - While the leader is stopped, it waits for events of its link (wsync_engine_poll, or with
 *    wsync_engine_start in any way) and asks for a header from time to time. A header that says
 *    stop may be sent once or again and again.
 *  - The link of a rank must be served while it waits for a header: by wsync_engine_start, or by
 *    waiting for both.
 *
 * What happens when:
 *  - A pause comes: the next header says stop, and each rank has paused when it has got it.
 *  - The pause is cancelled before that: it leaves no trace. After that: the next header says go.
 *  - It comes twice: the ranks stop once.
 *  - The leader is resumed before a rank has loaded (a sidecar does not do that): that rank refuses
 *    the header that says go.
 *  - A follower gets a header twice: nothing for stop; it refuses go, so that it does not step
 *    twice. It misses one: it obeys stop, and refuses go, because it may have missed a step.
 *  - The leader restarts: its steps are counted from 1 again, and its first headers say stop until
 *    it has loaded a version and is resumed. Followers that ran stop with the first one.
 *  - A follower attaches late, or restarts: it refuses go until it has loaded the version under
 *    which the leader steps. It may begin with any step.
 *  - A rank holds another version than the header says: it refuses go, and the sentence names the
 *    rank, the step and both versions. A rank that refuses has not begun the step and says to the
 *    fleet that it stands. The others wait for it in their step, as for a rank that is lost, so
 *    end the step as you do then. */
enum { WSYNC_STEP_GO = 0x57530001, WSYNC_STEP_STOP = 0x57530002 };

/* Plain bytes without a pointer and without padding, in the byte order of the machine. */
typedef struct {
  uint32_t word; /* WSYNC_STEP_GO or WSYNC_STEP_STOP */
  uint32_t version_epoch;
  uint64_t version_step; /* of the version under which the leader steps; 0.0: of no trainer */
  uint64_t step;         /* go: the one to begin, counted from 1; stop: the last one */
  uint64_t decision;     /* counts what the leader has decided, a stop or a step */
  uint64_t leader;       /* another number in each process of a leader */
} wsync_step_header;

/* Leader, between two steps: whether to begin the next one. Call it from one thread, which need not
 * be the one that polls. Fails if the steps are not led, before wsync_engine_attach, and for a
 * follower. `header` is the caller's. */
WSYNC_API int wsync_engine_lead_step(wsync_engine* engine, wsync_step_header* header);
/* Every other rank, for each header: `*go` is 1 if the rank is to begin the step header->step now,
 * and 0 if it is to stand. A failure means that it must stand although its leader steps;
 * wsync_engine_error says why on the same thread. Call it from one thread, which need not be the
 * one that polls. */
WSYNC_API int wsync_engine_follow_step(wsync_engine* engine, const wsync_step_header* header,
                                       int* go);

/* Why the callback that is running, or the next report of this thread, fails: one sentence, copied.
 * The fleet reads it in the outcome of the publish and in `wsync status`. Call it before the error
 * is returned or reported. NULL removes the sentence. */
WSYNC_API void wsync_engine_fail(wsync_engine* engine, const char* sentence);
/* Ends a load that load_layer has answered with WSYNC_LATER: all its layers have been used, or with
 * a code other than 0 it has failed. The pointers of ADOPT and BORROW stay valid after a success,
 * as load_layer says. */
WSYNC_API void wsync_engine_report_loaded(wsync_engine* engine, wsync_version version, int code);
/* Ends a commit that was answered with WSYNC_LATER. */
WSYNC_API void wsync_engine_report_committed(wsync_engine* engine, wsync_version version, int code);
/* The number of tensors that this rank takes of a version which is staged, being loaded, or served
 * here. */
WSYNC_API int wsync_engine_tensor_count(wsync_engine* engine, wsync_version version,
                                        uint32_t* count);
/* Describes one of them. The pointers are valid during the callbacks for this version, until its
 * load and its commit are reported, and, once it is committed, until another one is. */
WSYNC_API int wsync_engine_tensor_info(wsync_engine* engine, wsync_version version, uint32_t tensor,
                                       wsync_tensor_info* info);
WSYNC_API wsync_engine_state wsync_engine_status(const wsync_engine* engine);
/* The newest refusal of a sidecar. The link goes on trying, less and less often, and is welcomed
 * when the reason is gone: when the engines of another model have ended, for example. An engine
 * that waits for its first version compares `number` after each wsync_engine_poll. Any thread. The
 * pointers are valid until the next call of this function on the same thread. Fails before
 * wsync_engine_attach. */
WSYNC_API int wsync_engine_refusal(wsync_engine* engine, wsync_refusal* refusal);
/* The last failure of this thread as one sentence; "" if there was none. Valid until its next call
 * for this engine. */
WSYNC_API const char* wsync_engine_error(wsync_engine* engine);
/* Ends the thread of wsync_engine_start after the current callback. */
WSYNC_API void wsync_engine_stop(wsync_engine* engine);
/* Stops, detaches and frees; NULL is allowed. Pointers of ADOPT and BORROW are invalid afterwards,
 * so with CUDA the work on the GPU that reads them must be complete. Does nothing in a forked
 * child. */
WSYNC_API void wsync_engine_destroy(wsync_engine* engine);

#ifdef __cplusplus
}
#endif

#endif
