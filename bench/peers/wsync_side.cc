#include "bench/peers/wsync_side.h"

#include "shared/base/format.h"
#include "shared/config/trainer_config.h"
#include "shared/weights/content_digest.h"

namespace wsync::bench {
namespace {

using control::PublishState;

constexpr std::chrono::milliseconds kLookAtPublish{50};
constexpr std::chrono::minutes kPublishDeadline{10};

}  // namespace

Result<> WsyncSide::load() {
  for (const std::string& path : source_.models) {
    Bytes& model = models_.emplace_back(source_.size);
    WSYNC_TRY(read_source(path, model));
    auto tensors = std::make_shared<std::vector<publish::RankTensor>>();
    std::vector<Digest> digests;
    for (const SourceTensor& tensor : source_.tensors) {
      // The tensor points to these bytes, which do not move when the list grows.
      const auto bytes = std::span<const std::byte>(model).subspan(tensor.offset, tensor.bytes);
      digests.push_back(tensor_digest(tensor.info.name, bytes));
      tensors->push_back({.info = tensor.info, .range = {}, .bytes = bytes});
    }
    contents_.push_back(root_digest(digests));
    tensors_.push_back(std::move(tensors));
  }
  return {};
}

Result<std::unique_ptr<WsyncSide>> WsyncSide::start(const WsyncSideOptions& options,
                                                    const ModelSource& source,
                                                    const Interrupt& interrupt) {
  std::unique_ptr<WsyncSide> side(new WsyncSide(source, interrupt));
  side->engines_ = options.engines;
  WSYNC_TRY(side->load());
  // Comes first because it refuses a directory whose name is too long for sockets.
  auto config =
      WSYNC_TRY(config::load_trainer({.file = {},
                                      .environment = {},
                                      .set = {"run_dir=" + options.directory + "/run",
                                              "state_dir=" + options.directory + "/state"}}));
  side->children_ = WSYNC_TRY(bench_children(options.directory));
  side->fleet_ = WSYNC_TRY(MeasuredFleet::start({.executable = options.executable,
                                                 .directory = options.directory,
                                                 .checkpoint = options.checkpoint,
                                                 .engines = options.engines,
                                                 .has_trainer = false},
                                                *side->children_));
  side->trainer_ = WSYNC_TRY(plugin::Trainer::create({.config = std::move(config)}));
  WSYNC_TRY(side->trainer_->start());
  return side;
}

Result<WsyncSide::Published> WsyncSide::transfer(std::size_t model) {
  const TimePoint begin = now();
  const auto publish = WSYNC_TRY(trainer_->publish_async(tensors_[model], ++step_));
  for (;;) {
    const auto view = trainer_->wait(publish, PublishState::kCommitted, now() + kLookAtPublish);
    const TimePoint end = now();
    if (!view && view.error().code() == ErrorCode::kDeadline) {
      WSYNC_TRY(resume(interrupt_));
      if (end - begin > kPublishDeadline) return fail(view.error());
      continue;
    }
    if (!view) return fail(view.error());
    const control::PublishStatus& status = view->status;
    if (status.state != PublishState::kCommitted || status.replicas != engines_)
      return fail(ErrorCode::kRefused,
                  fmt::format("publish {} reached {}, expected {}: {}", step_,
                              counted(status.replicas, "engine"), engines_,
                              status.reason.empty() ? "no reason given" : status.reason));
    if (status.content_digest != contents_[model])
      return fail(
          ErrorCode::kDigestMismatch,
          fmt::format("version {} has the digest {}, expected {}", status.version.to_string(),
                      status.content_digest.to_string(), contents_[model].to_string()));
    return Published{.seconds = seconds(end - begin),
                     .staged_seconds = 1e-9 * static_cast<double>(status.staged_ns),
                     .paused_seconds = 1e-9 * static_cast<double>(status.paused_ns)};
  }
}

}  // namespace wsync::bench
