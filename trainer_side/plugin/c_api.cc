// The C API (wsync/trainer.h) over Trainer: checks the arguments, and turns callbacks into tensors.
#include <algorithm>
#include <cstring>
#include <exception>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "shared/base/fork_guard.h"
#include "shared/base/format.h"
#include "shared/base/log.h"
#include "shared/config/sources.h"
#include "shared/config/trainer_config.h"
#include "trainer_side/plugin/c_arguments.h"
#include "trainer_side/plugin/trainer.h"
#include "trainer_side/plugin/wsync/trainer.h"
#include "trainer_side/publish/draft.h"
#include "trainer_side/publish/first_draft.h"
#include "trainer_side/publish/trainer_gpus.h"

namespace {

using wsync::ErrorCode;
using wsync::Result;
using wsync::TimePoint;
using wsync::control::PublishState;
using wsync::publish::RankTensor;

thread_local std::string last_error;

wsync_code code_of(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidInput:
      return WSYNC_INVALID_INPUT;
    case ErrorCode::kNotFound:
      return WSYNC_NOT_FOUND;
    case ErrorCode::kRefused:
      return WSYNC_REFUSED;
    case ErrorCode::kBusy:
      return WSYNC_BUSY;
    case ErrorCode::kDeadline:
      return WSYNC_DEADLINE;
    case ErrorCode::kPeerLost:
      return WSYNC_PEER_LOST;
    case ErrorCode::kFenced:
      return WSYNC_FENCED;
    case ErrorCode::kDigestMismatch:
      return WSYNC_DIGEST_MISMATCH;
    case ErrorCode::kResourceExhausted:
      return WSYNC_RESOURCE_EXHAUSTED;
    case ErrorCode::kCancelled:
      return WSYNC_CANCELLED;
    case ErrorCode::kIo:
      return WSYNC_IO;
    case ErrorCode::kInternal:
      return WSYNC_INTERNAL;
    case ErrorCode::kPartial:
      return WSYNC_PARTIAL;
  }
  return WSYNC_INTERNAL;
}

wsync_publish_state c_publish_state(PublishState state) {
  switch (state) {
    case PublishState::kPending:
      return WSYNC_PUBLISH_PENDING;
    case PublishState::kSnapshotted:
      return WSYNC_PUBLISH_SNAPSHOTTED;
    case PublishState::kStaged:
      return WSYNC_PUBLISH_STAGED;
    case PublishState::kCommitted:
      return WSYNC_PUBLISH_COMMITTED;
    case PublishState::kSuperseded:
      return WSYNC_PUBLISH_SUPERSEDED;
    case PublishState::kFailed:
      return WSYNC_PUBLISH_FAILED;
  }
  return WSYNC_PUBLISH_FAILED;
}

// Returns std::nullopt for a state that a caller cannot wait for.
std::optional<PublishState> awaited_state(wsync_publish_state state) {
  switch (state) {
    case WSYNC_PUBLISH_PENDING:
      return PublishState::kPending;
    case WSYNC_PUBLISH_SNAPSHOTTED:
      return PublishState::kSnapshotted;
    case WSYNC_PUBLISH_STAGED:
      return PublishState::kStaged;
    case WSYNC_PUBLISH_COMMITTED:
      return PublishState::kCommitted;
    default:
      return std::nullopt;
  }
}

// Runs `body`, a function that returns a Result<>. Catches all exceptions, because the caller may
// be C.
template <class Body>
wsync_code run(Body body) {
  try {
    const Result<> result = body();
    if (result) return WSYNC_OK;
    last_error = result.error().message();
    return code_of(result.error().code());
  } catch (const std::bad_alloc&) {
    last_error = "there is not enough memory";
    return WSYNC_RESOURCE_EXHAUSTED;
  } catch (const std::exception& thrown) {
    last_error = thrown.what();
    return WSYNC_INTERNAL;
  }
}

// Returns std::nullopt for -1, which means no limit.
Result<std::optional<std::chrono::milliseconds>> time_of(int timeout_ms) {
  if (timeout_ms >= 0) return std::chrono::milliseconds(timeout_ms);
  if (timeout_ms == -1) return std::nullopt;
  return wsync::fail(ErrorCode::kInvalidInput,
                     fmt::format("timeout_ms is {}, expected -1 or more", timeout_ms));
}

// Whether a tensor can only be written between begin and end.
bool has_no_bytes(const RankTensor& tensor) {
  const auto* read = std::get_if<wsync::publish::ReadTensor>(&tensor.bytes);
  return read != nullptr && !*read;
}

Result<> check_bytes(const std::vector<RankTensor>& tensors) {
  const auto without = std::ranges::find_if(tensors, has_no_bytes);
  if (without == tensors.end()) return {};
  return wsync::fail(ErrorCode::kInvalidInput,
                     fmt::format("tensor {}: both data and read are NULL, so it is published by "
                                 "wsync_trainer_begin and wsync_trainer_end only",
                                 without->info.name));
}

void fill(wsync_publish_status& out, const wsync::plugin::PublishView& view) {
  const auto& status = view.status;
  out = {};
  out.state = c_publish_state(status.state);
  if (status.state == PublishState::kFailed) out.code = code_of(status.code);
  out.step = status.version.none() ? status.step : status.version.step;
  out.version = {.epoch = status.version.epoch, .step = status.version.step};
  out.content_digest[0] = status.content_digest.low;
  out.content_digest[1] = status.content_digest.high;
  out.bytes = status.bytes;
  out.snapshot_ns = status.snapshot_ns;
  out.staged_ns = status.staged_ns;
  out.paused_ns = status.paused_ns;
  out.replicas = status.replicas;
  out.done_bytes = view.done_bytes;
  out.total_bytes = view.total_bytes;
  const std::string& reason = view.reason();
  std::memcpy(out.reason, reason.data(), std::min(reason.size(), sizeof out.reason - 1));
}

// Returns the result of a wait that has ended with this status.
Result<> judge(const wsync::plugin::PublishView& view, PublishState awaited) {
  // A round may end before the waiting thread runs again. The weights may be overwritten all the
  // same, so the result of this wait does not depend on which of the two comes first.
  if (awaited == PublishState::kSnapshotted && view.is_snapshotted) return {};
  const wsync::control::PublishStatus& status = view.status;
  if (status.state == PublishState::kFailed) return wsync::fail(status.code, status.reason);
  if (status.state == PublishState::kSuperseded)
    return wsync::fail(ErrorCode::kCancelled, status.reason);
  return {};
}

}  // namespace

namespace {

// A version that the caller writes.
struct OpenDraft {
  wsync_draft id = 0;
  std::uint64_t step = 0;
  // One of the two: `first` if nobody has described the tensors.
  std::shared_ptr<wsync::publish::Draft> draft;
  std::shared_ptr<wsync::publish::FirstDraft> first;
};

}  // namespace

struct wsync_trainer {
  wsync::HomeProcess home;
  std::uint32_t world_size = 1;
  // Those of which memory is given; opened when the first is.
  std::shared_ptr<wsync::publish::TrainerGpus> gpus =
      std::make_shared<wsync::publish::TrainerGpus>();
  std::unique_ptr<wsync::plugin::Trainer> trainer;
  std::mutex mutex;
  std::vector<RankTensor> tensors;  // protected by mutex
  // Protected by mutex:
  OpenDraft open;  // id 0: none
  wsync_draft last_draft = 0;
  // Protected by mutex: the same tensors as passed to publishes; or null.
  wsync::plugin::RankTensors current;

  wsync::plugin::RankTensors described() {
    const std::lock_guard lock(mutex);
    if (!current) current = std::make_shared<const std::vector<RankTensor>>(tensors);
    return current;
  }
  // `what`: names the tensor or the call in the sentence.
  Result<OpenDraft> find(wsync_draft draft, std::string_view what) {
    const std::lock_guard lock(mutex);
    if (draft != 0 && open.id == draft && (open.draft || open.first)) return open;
    if (draft == 0 || draft > last_draft)
      return wsync::fail(ErrorCode::kInvalidInput,
                         fmt::format("{}: there has been no version {}", what, draft));
    return wsync::fail(ErrorCode::kRefused,
                       fmt::format("{}: the version has been ended or abandoned", what));
  }
};

namespace {

// Must be called before anything else of the handle is used: in a forked child, locks may be held
// by threads that do not exist there.
Result<> check(const wsync_trainer* trainer) {
  if (trainer == nullptr) return wsync::fail(ErrorCode::kInvalidInput, "trainer is NULL");
  return trainer->home.check("wsync_trainer");
}

}  // namespace

wsync_code wsync_trainer_create(const wsync_trainer_options* options, wsync_trainer** trainer) {
  // Installed with the first handle only, so that a program without handles may fork freely and
  // pass descriptors to its child processes.
  wsync::close_descriptors_in_children();
  if (trainer != nullptr) *trainer = nullptr;
  return run([&]() -> Result<> {
    if (options == nullptr || trainer == nullptr ||
        (options->settings == nullptr && options->setting_count != 0))
      return wsync::fail(ErrorCode::kInvalidInput, "options, settings or trainer is NULL");
    wsync::config::Sources sources{.environment = wsync::config::process_environment(),
                                   .set_name = "settings"};
    if (options->config_file != nullptr) sources.file = options->config_file;
    for (std::size_t i = 0; i < options->setting_count; ++i)
      sources.set.emplace_back(options->settings[i] == nullptr ? "" : options->settings[i]);
    auto config = WSYNC_TRY(wsync::config::load_trainer(sources));
    const std::uint32_t world_size = std::max(1U, options->world_size);
    const wsync::LogOptions log{
        .level = config.log.level,
        .format = config.log.format,
        .role = world_size == 1 ? "trainer" : fmt::format("trainer rank {}", options->rank)};
    auto made = WSYNC_TRY(wsync::plugin::Trainer::create(
        {.config = std::move(config), .rank = options->rank, .world_size = world_size}));
    // Not for one that cannot be made: the process may have another one, whose lines these are.
    wsync::log_init(log);
    auto whole = std::make_unique<wsync_trainer>();
    whole->trainer = std::move(made);
    whole->world_size = world_size;
    *trainer = whole.release();
    return {};
  });
}

wsync_code wsync_trainer_add_tensor(wsync_trainer* trainer, const wsync_trainer_tensor* tensor) {
  return run([&]() -> Result<> {
    WSYNC_TRY(check(trainer));
    if (tensor == nullptr) return wsync::fail(ErrorCode::kInvalidInput, "tensor is NULL");
    auto read = WSYNC_TRY(wsync::plugin::tensor_argument(*trainer->gpus, *tensor));
    const std::lock_guard lock(trainer->mutex);
    trainer->tensors.push_back(std::move(read));
    trainer->current.reset();
    return {};
  });
}

void wsync_trainer_clear_tensors(wsync_trainer* trainer) {
  if (trainer == nullptr || !trainer->home.is_here()) return;
  const std::lock_guard lock(trainer->mutex);
  trainer->tensors.clear();
  trainer->current.reset();
}

wsync_code wsync_trainer_start(wsync_trainer* trainer) {
  return run([&]() -> Result<> {
    WSYNC_TRY(check(trainer));
    return trainer->trainer->start();
  });
}

wsync_code wsync_trainer_begin(wsync_trainer* trainer, uint64_t step, wsync_draft* draft) {
  return run([&]() -> Result<> {
    WSYNC_TRY(check(trainer));
    if (draft == nullptr) return wsync::fail(ErrorCode::kInvalidInput, "draft is NULL");
    *draft = 0;
    OpenDraft opened{.step = step};
    std::vector<wsync::publish::DraftTensor> tensors;
    for (const RankTensor& tensor : *trainer->described())
      tensors.push_back({.info = tensor.info, .range = tensor.range});
    {
      // Its number is taken before the wait for memory, so that a second call does not begin too.
      const std::lock_guard lock(trainer->mutex);
      if (trainer->open.id != 0)
        return wsync::fail(
            ErrorCode::kInvalidInput,
            fmt::format("a version of this trainer is open (draft {}); end or abandon it first",
                        trainer->open.id));
      opened.id = trainer->open.id = ++trainer->last_draft;
    }
    const auto begin = [&]() -> Result<> {
      if (!tensors.empty()) {
        opened.draft = WSYNC_TRY(trainer->trainer->begin(std::move(tensors), step));
        return {};
      }
      if (trainer->world_size > 1)
        return wsync::fail(ErrorCode::kInvalidInput,
                           "no tensor is described; with several ranks each of them describes its "
                           "part by wsync_trainer_add_tensor");
      opened.first = std::make_shared<wsync::publish::FirstDraft>();
      return {};
    };
    // Also if an exception ends this: there may be no memory for a thread.
    struct Reset {
      ~Reset() {
        const std::lock_guard lock(trainer->mutex);
        if (trainer->open.id == opened.id) trainer->open = is_begun ? opened : OpenDraft{};
      }
      wsync_trainer* trainer;
      const OpenDraft& opened;
      bool is_begun = false;
    } reset{trainer, opened};
    const Result<> begun = begin();
    reset.is_begun = begun.has_value();
    if (begun) *draft = opened.id;
    return begun;
  });
}

wsync_code wsync_trainer_put(wsync_trainer* trainer, wsync_draft draft,
                             const wsync_trainer_part* part) {
  return run([&]() -> Result<> {
    WSYNC_TRY(check(trainer));
    if (part == nullptr) return wsync::fail(ErrorCode::kInvalidInput, "part is NULL");
    const auto put = WSYNC_TRY(wsync::plugin::part_argument(*trainer->gpus, *part));
    const auto open = WSYNC_TRY(trainer->find(draft, fmt::format("tensor {}", put.name)));
    std::optional<wsync::DType> published;
    if (part->publish_dtype != nullptr)
      published = WSYNC_TRY(wsync::plugin::dtype_argument(put.name, part->publish_dtype));
    if (open.first) return open.first->put(put, published.value_or(put.dtype));
    if (published) WSYNC_TRY(open.draft->check_dtype(put.name, *published));
    return open.draft->put(put);
  });
}

wsync_code wsync_trainer_put_all(wsync_trainer* trainer, wsync_draft draft,
                                 const wsync_trainer_part* parts, size_t count, size_t* failed) {
  std::size_t at = count;
  const wsync_code code = run([&]() -> Result<> {
    WSYNC_TRY(check(trainer));
    if (parts == nullptr && count != 0)
      return wsync::fail(ErrorCode::kInvalidInput, "parts is NULL");
    const auto open = WSYNC_TRY(trainer->find(draft, fmt::format("{} parts", count)));
    std::vector<wsync::publish::DraftPart> put;
    put.reserve(count);
    for (at = 0; at < count; ++at) {
      const wsync_trainer_part& part = parts[at];
      put.push_back(WSYNC_TRY(wsync::plugin::part_argument(*trainer->gpus, part)));
      std::optional<wsync::DType> published;
      if (part.publish_dtype != nullptr)
        published = WSYNC_TRY(wsync::plugin::dtype_argument(part.name, part.publish_dtype));
      if (open.first)
        WSYNC_TRY(open.first->put(put.back(), published.value_or(put.back().dtype)));
      else if (published)
        WSYNC_TRY(open.draft->check_dtype(part.name, *published));
    }
    return open.first ? Result<>() : open.draft->put_all(put, at);
  });
  if (failed != nullptr) *failed = at;
  return code;
}

wsync_code wsync_trainer_map(wsync_trainer* trainer, wsync_draft draft, const char* name,
                             void** data, uint64_t* bytes) {
  return run([&]() -> Result<> {
    WSYNC_TRY(check(trainer));
    if (name == nullptr || data == nullptr)
      return wsync::fail(ErrorCode::kInvalidInput, "name or data is NULL");
    *data = nullptr;
    const auto open = WSYNC_TRY(trainer->find(draft, fmt::format("tensor {}", name)));
    if (!open.draft)
      return wsync::fail(ErrorCode::kNotFound,
                         fmt::format("tensor {}: it has memory only after wsync_trainer_add_tensor "
                                     "or the first version has described it",
                                     name));
    const auto memory = WSYNC_TRY(open.draft->pointer(name));
    *data = memory.data();
    if (bytes != nullptr) *bytes = memory.size();
    return {};
  });
}

wsync_code wsync_trainer_end(wsync_trainer* trainer, wsync_draft draft, wsync_publish* publish) {
  wsync_publish id = 0;
  if (publish != nullptr) *publish = 0;
  const wsync_code code = run([&]() -> Result<> {
    WSYNC_TRY(check(trainer));
    auto open = WSYNC_TRY(trainer->find(draft, "end"));
    std::vector<RankTensor> described;  // by the parts of the first version
    if (open.first) {
      WSYNC_TRY(open.first->close());
      const std::unique_ptr<wsync::publish::FirstDraft, void (*)(wsync::publish::FirstDraft*)>
          reopened(open.first.get(), [](wsync::publish::FirstDraft* first) { first->reopen(); });
      auto tensors = WSYNC_TRY(open.first->tensors());
      for (const auto& tensor : tensors)
        described.push_back({.info = tensor.info, .bytes = wsync::publish::ReadTensor()});
      open.draft = WSYNC_TRY(trainer->trainer->begin(std::move(tensors), open.step));
      WSYNC_TRY(open.first->put_into(*open.draft));
    }
    WSYNC_TRY(open.draft->seal());
    {
      const std::lock_guard lock(trainer->mutex);
      if (!described.empty()) {
        trainer->tensors = std::move(described);
        trainer->current.reset();
      }
      if (trainer->open.id == draft) trainer->open = {};
    }
    id = WSYNC_TRY(
        trainer->trainer->publish_async(std::move(open.draft), trainer->described(), open.step));
    return {};
  });
  if (publish != nullptr) *publish = id;
  if (code != WSYNC_OK) return code;
  return wsync_trainer_wait(trainer, id, WSYNC_PUBLISH_SNAPSHOTTED, -1, nullptr);
}

wsync_code wsync_trainer_abandon(wsync_trainer* trainer, wsync_draft draft) {
  return run([&]() -> Result<> {
    WSYNC_TRY(check(trainer));
    const OpenDraft dropped = WSYNC_TRY(trainer->find(draft, "abandon"));
    const std::lock_guard lock(trainer->mutex);
    if (trainer->open.id == draft) trainer->open = {};
    return {};
  });
}

wsync_code wsync_trainer_publish_async(wsync_trainer* trainer, uint64_t step,
                                       wsync_publish* publish) {
  return run([&]() -> Result<> {
    WSYNC_TRY(check(trainer));
    if (publish == nullptr) return wsync::fail(ErrorCode::kInvalidInput, "publish is NULL");
    *publish = 0;
    const auto tensors = trainer->described();
    WSYNC_TRY(check_bytes(*tensors));
    const auto id = WSYNC_TRY(trainer->trainer->publish_async(tensors, step));
    *publish = id;
    return {};
  });
}

wsync_code wsync_trainer_publish(wsync_trainer* trainer, uint64_t step, wsync_publish* publish) {
  wsync_publish id = 0;
  const wsync_code code = wsync_trainer_publish_async(trainer, step, &id);
  if (publish != nullptr) *publish = id;
  if (code != WSYNC_OK) return code;
  return wsync_trainer_wait(trainer, id, WSYNC_PUBLISH_SNAPSHOTTED, -1, nullptr);
}

wsync_code wsync_trainer_poll(wsync_trainer* trainer, wsync_publish publish,
                              wsync_publish_status* status) {
  return run([&]() -> Result<> {
    WSYNC_TRY(check(trainer));
    if (status == nullptr) return wsync::fail(ErrorCode::kInvalidInput, "status is NULL");
    const auto view = WSYNC_TRY(trainer->trainer->look(publish));
    fill(*status, view);
    return {};
  });
}

wsync_code wsync_trainer_wait(wsync_trainer* trainer, wsync_publish publish,
                              wsync_publish_state state, int timeout_ms,
                              wsync_publish_status* status) {
  return run([&]() -> Result<> {
    WSYNC_TRY(check(trainer));
    const auto awaited = awaited_state(state);
    if (!awaited)
      return wsync::fail(
          ErrorCode::kInvalidInput,
          fmt::format("{} is not a state that can be waited for", static_cast<int>(state)));
    const auto time = WSYNC_TRY(time_of(timeout_ms));
    std::optional<TimePoint> deadline;
    if (time) deadline = wsync::now() + *time;
    const auto waited = trainer->trainer->wait(publish, *awaited, deadline);
    const auto view = WSYNC_TRY(waited ? waited : trainer->trainer->look(publish));
    if (status != nullptr) fill(*status, view);
    if (!waited) return wsync::fail(waited.error());
    return judge(view, *awaited);
  });
}

wsync_code wsync_trainer_problem(wsync_trainer* trainer, wsync_publish publish,
                                 wsync_problem* problem) {
  return run([&]() -> Result<> {
    WSYNC_TRY(check(trainer));
    if (problem == nullptr) return wsync::fail(ErrorCode::kInvalidInput, "problem is NULL");
    thread_local wsync::control::Problem kept;
    const auto problems = WSYNC_TRY(trainer->trainer->look(publish)).status.problems;
    kept = problems.empty() ? wsync::control::Problem{} : problems.front();
    *problem = {.tensor = kept.tensor.c_str(),
                .expected = kept.expected.c_str(),
                .found = kept.found.c_str()};
    return {};
  });
}

wsync_code wsync_trainer_roll_back(wsync_trainer* trainer, wsync_version to, int timeout_ms,
                                   wsync_rollback* result) {
  return run([&]() -> Result<> {
    WSYNC_TRY(check(trainer));
    const auto time = WSYNC_TRY(time_of(timeout_ms));
    const auto reply =
        WSYNC_TRY(trainer->trainer->roll_back({.epoch = to.epoch, .step = to.step}, time));
    if (result != nullptr)
      *result = {.from = {.epoch = reply.from.epoch, .step = reply.from.step},
                 .to = {.epoch = reply.to.epoch, .step = reply.to.step},
                 .partial = reply.partial ? 1 : 0};
    if (!reply.ok)
      return wsync::fail(reply.partial ? ErrorCode::kPartial : ErrorCode::kRefused, reply.reason);
    return {};
  });
}

wsync_code wsync_trainer_check(wsync_trainer* trainer) {
  return run([&]() -> Result<> {
    WSYNC_TRY(check(trainer));
    return trainer->trainer->check();
  });
}

const char* wsync_trainer_error(void) { return last_error.c_str(); }

void wsync_trainer_destroy(wsync_trainer* trainer) {
  if (trainer != nullptr && trainer->home.is_here()) delete trainer;
}
