#include "inference_side/engine/reference/reference_engine.h"

#include <filesystem>

#include "shared/base/check.h"
#include "shared/base/format.h"
#include "shared/base/limits.h"
#include "shared/base/planted.h"

namespace wsync::engine::reference {

using control::TakeMode;

namespace {

Result<> check(const ReferenceEngineOptions& options) {
  if (options.replica.empty() || options.replica.size() > limits::kReplicaNameBytes)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("the replica's name has {} bytes, 1 to {} are allowed",
                            options.replica.size(), limits::kReplicaNameBytes));
  if (options.world_size == 0 || options.world_size > limits::kReplicaRankCount ||
      options.rank >= options.world_size)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("rank {} of {} ranks: a rank is below the number of ranks, which is 1 "
                            "to {}",
                            options.rank, options.world_size, limits::kReplicaRankCount));
  if (options.take == TakeMode::kAdopt && options.load_weights)
    return fail(ErrorCode::kInvalidInput,
                "an adopting engine has no memory for weights of its own: it starts without any");
  return check_socket_path(options.sidecar_socket);
}

}  // namespace

ReferenceEngine::ReferenceEngine(ReferenceEngineOptions options, EventSink sink)
    : options_(std::move(options)),
      sink_(std::move(sink)),
      gate_(options_.load_weights ? StepGate::holding({}) : StepGate()) {}

ReferenceEngine::~ReferenceEngine() { stop(); }

Result<std::unique_ptr<ReferenceEngine>> ReferenceEngine::create(ReferenceEngineOptions options,
                                                                 EventSink sink) {
  WSYNC_TRY(check(options));
  if (options.run_directory.empty())
    options.run_directory = std::filesystem::path(options.sidecar_socket).parent_path().string();
  std::unique_ptr<ReferenceEngine> engine(new ReferenceEngine(std::move(options), std::move(sink)));
  WSYNC_TRY(engine->prepare_model());
  WSYNC_TRY(engine->prepare_threads());
  return engine;
}

Result<> ReferenceEngine::prepare_model() {
  const auto checkpoint = CheckpointDirectory::open(options_.checkpoint);
  if (!checkpoint) return fail(checkpoint.error());
  auto model = HeldModel::create(checkpoint->manifest(), options_.rank, options_.world_size,
                                 options_.take == TakeMode::kAdopt);
  if (!model) return fail(std::move(model).error());
  model_ = std::move(*model);
  if (!options_.load_weights) return {};
  return model_->read_checkpoint(*checkpoint);
}

Result<> ReferenceEngine::prepare_threads() {
  EngineDescription description{.replica = options_.replica,
                                .rank = options_.rank,
                                .world_size = options_.world_size,
                                .leader = options_.rank == 0,
                                .device = options_.device,
                                .take = options_.take,
                                .serving = options_.load_weights};
  for (std::size_t t = 0; t < model_->tensors().size(); ++t)
    description.tensors.push_back({.description = model_->tensors()[t],
                                   .destination = options_.take == TakeMode::kPieces
                                                      ? model_->memory(t)
                                                      : std::span<std::byte>()});
  auto link = EngineLink::create(std::move(description), options_.sidecar_socket, *this);
  if (!link) return fail(std::move(link).error());
  link_ = std::move(*link);

  ServingEvents events{
      .together =
          [this](std::uint32_t ranks) { say("together", {{"ranks", std::uint64_t{ranks}}}); },
      .paused =
          [this](std::uint64_t step, const std::string& why) {
            say("paused", {{"step", step}, {"why", why}});
            if (why.empty())
              link_->report_paused(step);
            else
              link_->report_stopped(step);
          },
      .running =
          [this](std::uint64_t step) {
            say("running", {{"step", step}});
            link_->report_running(step);
          },
      .torn =
          [this](std::uint64_t step, const std::string& saw) {
            say("torn", {{"step", step}, {"why", saw.empty() ? "in another rank" : saw}});
          }};
  auto serving =
      Serving::create({.group = {.path = step_socket_path(options_.run_directory, options_.replica),
                                 .world_size = options_.world_size,
                                 .rank = options_.rank},
                       .step_interval = options_.step_interval},
                      *model_, gate_, std::move(events));
  if (!serving) return fail(std::move(serving).error());
  serving_ = std::move(*serving);
  return {};
}

void ReferenceEngine::start() {
  started_ = true;
  // With weights of its own the leader begins at once; a follower that holds others refuses.
  if (options_.load_weights && options_.rank == 0) (void)gate_.resume();
  serving_->start();
  const Result<> started = link_->start();
  WSYNC_CHECK(started.has_value(), "an engine is started once");
}

void ReferenceEngine::stop() {
  if (!std::exchange(started_, false)) return;
  link_->stop();
  serving_->stop();
}

void ReferenceEngine::say(std::string name,
                          std::vector<std::pair<std::string, EngineEvent::Value>> fields) {
  const std::lock_guard lock(sink_mutex_);
  sink_({.name = std::move(name), .fields = std::move(fields)});
}

void ReferenceEngine::report_stats() {
  const ServingStats stats = serving_->stats();
  const StepGate::View view = gate_.view();
  std::string versions;
  for (const auto& [version, steps] : stats.by_version)
    versions += fmt::format("{}{}:{}", versions.empty() ? "" : " ", version.to_string(), steps);
  std::string state = "loading";
  if (view.phase == GatePhase::kPaused) state = "paused";
  if (view.phase == GatePhase::kServing) state = "serving";
  say("stats", {{"steps", stats.steps},
                {"versions", versions},
                {"torn", stats.torn},
                {"aborted", stats.aborted},
                {"broken", stats.broken},
                {"last_step", stats.last_step},
                {"last_total", fmt::format("{:016x}", stats.last_total)},
                {"state", state},
                {"active", view.version.to_string()}});
}

// ---- what the link asks ----

// Steps are short: every mode ends at the next boundary between two of them.
Result<> ReferenceEngine::pause(control::PauseMode /*mode*/, std::uint32_t /*deadline_ms*/) {
  serving_->pause();
  return {};
}

Result<> ReferenceEngine::load_begin(const Version& version) {
  const bool copies = options_.take != TakeMode::kAdopt;
  if (auto begun = gate_.begin_load(copies); !begun && !planted("pause_not_honoured")) return begun;
  if (!copies) return {};
  model_->begin_load();
  say("loading", {{"version", version.to_string()}});
  return {};
}

Result<> ReferenceEngine::load_layer(const Version& version, std::uint32_t layer,
                                     std::span<const LayerTensor> tensors) {
  model_->take_layer(version, tensors);
  if (planted("rank_flips_early") && layer + 1 == model_->layer_count())
    (void)gate_.commit(version);
  say("layer", {{"version", version.to_string()}, {"layer", std::uint64_t{layer}}});
  return {};
}

Result<> ReferenceEngine::commit(const Version& version) {
  // Nothing may enter a step between the change of the weights and the change of their name.
  WSYNC_TRY(gate_.begin_load(true));
  model_->commit(version);
  WSYNC_TRY(gate_.commit(version));
  say("committed", {{"version", version.to_string()}});
  return {};
}

Result<> ReferenceEngine::resume() {
  WSYNC_TRY(serving_->resume());
  say("resumed");
  return {};
}

Result<> ReferenceEngine::read_tensor(std::uint32_t tensor, std::uint64_t offset,
                                      std::span<std::byte> out) {
  model_->copy_out(tensor, offset, out);
  return {};
}

void ReferenceEngine::on_attached() { say("attached"); }

void ReferenceEngine::on_prepared(const Version& version) {
  say("prepared", {{"version", version.to_string()}});
}

void ReferenceEngine::on_bucket(const Version& version, std::uint64_t bucket, std::uint64_t of) {
  say("bucket", {{"version", version.to_string()}, {"bucket", bucket}, {"of", of}});
}

void ReferenceEngine::on_loaded(const Version& version, std::uint64_t bytes) {
  say("loaded", {{"version", version.to_string()}, {"bytes", bytes}});
}

}  // namespace wsync::engine::reference
