#include "trainer_side/publish/directory_follower.h"

#include <algorithm>
#include <filesystem>
#include <utility>
#include <vector>

#include "shared/base/durable_file.h"
#include "shared/base/format.h"
#include "shared/base/log.h"
#include "trainer_side/publish/checkpoint_source.h"

namespace wsync::publish {
namespace {

constexpr std::uint64_t kRecordBytesMax = 16 * 1024;
constexpr std::chrono::milliseconds kPauseMin{1'000};  // after a failed publish, doubled each time
constexpr std::chrono::milliseconds kPauseMax{30'000};

}  // namespace

Result<std::unique_ptr<DirectoryFollower>> DirectoryFollower::create(
    Loop& loop, const config::TrainerConfig& config,
    std::function<void(const Error& reason)> on_stopped) {
  auto follower = std::unique_ptr<DirectoryFollower>(new DirectoryFollower(loop, config));
  TrainerAgentCallbacks callbacks;
  callbacks.on_stopped = [owner = follower.get(), on_stopped](const Error& reason) {
    owner->timer_.stop();
    on_stopped(reason);
  };
  callbacks.on_ready = [owner = follower.get()](const Version& target) { owner->restore(target); };
  follower->agent_ = WSYNC_TRY(TrainerAgent::create(loop, config, std::move(callbacks)));
  log_info("following {}", config.follow_directory);
  return follower;
}

DirectoryFollower::DirectoryFollower(Loop& loop, const config::TrainerConfig& config)
    : config_(config),
      record_path_(
          (std::filesystem::path(config.state_dir) / config.fleet / "followed.directory").string()),
      timer_(loop, [this] { look(); }),
      worker_(std::make_unique<Worker>(loop, WorkerOptions{.name = "follow"})) {}

DirectoryFollower::~DirectoryFollower() {
  // The worker still posts the end of a look; that task must not use this object.
  *alive_ = false;
  agent_.reset();
  worker_->stop();
}

// The coordinator has its fence, and the fleet runs `target` already. After a `wsync rollback` that
// is an older version than the one in the record, and stays so until `latest` names another
// directory. A newer one was decided without being recorded: it is published again. So is one that
// no sidecar holds any more, because engines that start would get no weights otherwise.
void DirectoryFollower::restore(const Version& target) {
  std::vector<std::string> lines{""};
  if (const auto bytes = read_small_file(record_path_, kRecordBytesMax)) {
    for (const std::byte byte : *bytes) {
      if (const char c = static_cast<char>(byte); c == '\n')
        lines.emplace_back();
      else
        lines.back() += c;
    }
  }
  lines.resize(5);
  const auto recorded = Version::parse(lines[0]);
  bool is_held = false;
  for (const control::SidecarReport& sidecar : agent_->status().sidecars)
    is_held = is_held || std::ranges::find(sidecar.staged, target) != sidecar.staged.end();
  if (recorded && !target.none() && *recorded == target && !is_held) {
    log_info("no sidecar holds the bytes of {} any more, which was read from {}", lines[0],
             lines[1]);
  } else if (recorded && !target.none() && *recorded >= target) {
    served_ = Found{.path = lines[1], .files = lines[2], .proof = std::nullopt};
    const auto digest = Digest::parse(lines[3]);
    const auto version = Version::parse(lines[4]);
    if (digest && version) served_->proof = WeightProof{.version = *version, .content = *digest};
    log_info("{} is {}, and the fleet serves {} already", lines[0], served_->path,
             target.to_string());
    if (!is_held)
      report(fmt::format(
          "{} was rolled back to {}, which no sidecar holds any more: engines that start now get "
          "no weights until `latest` names another directory than {}; to serve one now, publish it "
          "by `wsync push DIRECTORY`",
          lines[0], target.to_string(), served_->path));
  }
  look();
  timer_.start_repeating(config_.follow_interval);
}

void DirectoryFollower::store(const Version& version) {
  const std::string text =
      fmt::format("{}\n{}\n{}\n{}\n{}\n", version.to_string(), served_->path, served_->files,
                  served_->content(), served_->proof ? served_->proof->version.to_string() : "");
  const auto submitted = worker_->submit([text, path = record_path_] {
    if (const auto stored = write_durably(path, std::as_bytes(std::span(text))); !stored)
      log_warning("{}: a restart publishes this version again", stored.error().message());
  });
  if (!submitted) log_warning("{}", submitted.error().message());
}

Result<DirectoryFollower::Found> DirectoryFollower::look_at(const std::string& folder,
                                                            const std::optional<Found>& seen) {
  Found found;
  found.path = WSYNC_TRY(latest_weight_directory(folder));
  // Read before the files are opened: what is written meanwhile is seen at the next look.
  const auto files = weight_files_identity(found.path);
  if (files && seen && seen->path == found.path && seen->files == *files) return *seen;
  const auto directory = WSYNC_TRY(open_weight_directory(folder, found.path));
  found.files = WSYNC_TRY(files);
  found.proof = WSYNC_TRY(weight_proof(directory));
  return found;
}

void DirectoryFollower::look() {
  if (reads_ || now() < not_before_) return;
  auto found = std::make_shared<std::optional<Result<Found>>>();
  const auto submitted = worker_->submit([found, folder = config_.follow_directory,
                                          seen = seen_] { found->emplace(look_at(folder, seen)); },
                                         [this, alive = alive_, found] {
                                           if (!*alive) return;
                                           reads_ = false;
                                           handle(std::move(**found));
                                         });
  reads_ = submitted.has_value();
}

void DirectoryFollower::handle(Result<Found> found) {
  if (!found) {
    // The folder may have nothing yet, or the directory vanished while it was opened.
    if (found.error().code() == ErrorCode::kNotFound)
      log_debug("{}", found.error().message());
    else
      report(found.error().message());
    return;
  }
  seen_ = *found;
  if (refused_ && refused_->path == found->path && refused_->files == found->files) return;
  const std::optional<Found>& newest = published_ ? published_ : served_;
  if (newest && newest->is_same(*found)) return;
  publish(*found);
}

void DirectoryFollower::publish(const Found& found) {
  published_ = found;
  reads_ = true;
  PublishJob job;
  job.open = [path = found.path] { return open_checkpoint_source(path); };
  job.step = agent_->named_step(found.path);
  job.is_kept = true;  // until engines are there, or a newer one replaces it
  job.on_snapshotted = [this](const Version& version, std::chrono::nanoseconds,
                              const std::string& waits_for) {
    reads_ = false;
    if (!waits_for.empty()) report(fmt::format("{} waits: {}", published_->path, waits_for));
    (void)version;
  };
  job.on_done = [this, found](const PublishResult& result) { end(found, result); };
  log_info("publishing {}, {}", found.path,
           found.proof ? fmt::format("which its writer calls {}", found.proof->version.to_string())
                       : "which is not proven: its writer states no digest");
  agent_->publish(std::move(job));
}

void DirectoryFollower::end(const Found& found, const PublishResult& result) {
  const bool is_newest =
      published_ && published_->path == found.path && published_->files == found.files;
  if (is_newest) {
    published_.reset();
    reads_ = false;
  }
  const bool is_decided =
      !result.error && !result.superseded &&
      (result.reply.ok || control::failure_code(result.reply) == ErrorCode::kPartial);
  if (is_decided) {
    served_ = found;
    refused_.reset();
    reported_.clear();
    pause_ = std::chrono::milliseconds(0);
    log_info("{} is {}", result.reply.version.to_string(), found.path);
    store(result.reply.version);
    return;
  }
  if (!is_newest) return;  // a newer one replaced it
  const std::string why = result.error ? result.error->message() : result.reply.reason;
  const ErrorCode code = result.error ? result.error->code() : control::failure_code(result.reply);
  report(fmt::format("{} is not served: {}", found.path, why));
  // Other bytes stay so until the files change. Whatever else failed (a deadline, an engine that
  // refuses, a sidecar that was lost) may succeed the next time.
  if (code == ErrorCode::kDigestMismatch) {
    refused_ = found;
    return;
  }
  pause_ = std::clamp(pause_ * 2, kPauseMin, kPauseMax);
  not_before_ = now() + pause_;
}

// Logs a sentence once, and shows it in `wsync status`.
void DirectoryFollower::report(const std::string& sentence) {
  if (sentence == reported_) return;
  reported_ = sentence;
  agent_->report_incident(sentence);
}

}  // namespace wsync::publish
