#include "bench/sync/bench_engine.h"

#include <algorithm>
#include <cstdio>
#include <iostream>
#include <mutex>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "bench/sync/floor.h"
#include "inference_side/reference_engine/reference_engine.h"
#include "shared/base/format.h"
#include "shared/weights/checkpoint_dir.h"

namespace wsync::bench {
namespace {

using engine::reference::EngineEvent;
using engine::reference::ReferenceEngine;
using nlohmann::json;

// Steps are rare, so that no step runs during a floor. A pause does not wait for the next step.
constexpr std::chrono::milliseconds kStepInterval{1'000};

// Writes lines of the engine's threads and of the command reader to standard output.
class Mouth {
 public:
  void say(const json& line) {
    const std::string text = line.dump() + "\n";
    const std::lock_guard lock(mutex_);
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
  }

 private:
  std::mutex mutex_;
};

class Commands {
 public:
  Commands(const ReferenceEngine& engine, const Manifest& manifest, Mouth& mouth)
      : engine_(engine), manifest_(manifest), mouth_(mouth) {}

  void on_event(const EngineEvent& event) {
    if (event.name == "committed") {
      const auto version = Version::parse(std::get<std::string>(event.fields.front().second));
      const std::lock_guard lock(mutex_);
      if (version) committed_ = *version;
    }
    if (event.name == "attached" || event.name == "paused" || event.name == "resumed")
      mouth_.say({{"event", event.name}, {"at_ns", static_cast<std::int64_t>(now())}});
  }

  void obey(const std::string& line) {
    std::istringstream words(line);
    std::string verb;
    words >> verb;
    const Result<json> answer = execute(verb, words);
    mouth_.say(answer ? *answer : json{{"event", "failed"}, {"why", answer.error().message()}});
  }

 private:
  Result<json> execute(const std::string& verb, std::istringstream& words) {
    if (verb == "map") {
      Version version;
      {
        const std::lock_guard lock(mutex_);
        version = committed_;
      }
      floor_ = WSYNC_TRY(FloorCopy::map(manifest_, engine_.model(), version));
      return json{
          {"event", "mapped"}, {"version", version.to_string()}, {"bytes", floor_->bytes()}};
    }
    if (verb == "read" && floor_) {
      floor_->read();
      return json{{"event", "read"}};
    }
    if (verb == "copy") {
      std::string name;
      unsigned threads = 0;
      unsigned verified = 0;
      words >> name >> threads >> verified;
      const auto kinds = available_copy_kinds();
      const auto kind = std::ranges::find(kinds, name, copy_kind_name);
      if (!words || !floor_ || threads == 0 || kind == kinds.end())
        return fail(ErrorCode::kInvalidInput, "expected `map`, then `copy KIND THREADS VERIFIED`");
      const PieceCopy::Times times =
          floor_->copy({.kind = *kind, .threads = threads, .verified = verified != 0});
      return json{{"event", "copied"},
                  {"begin_ns", static_cast<std::int64_t>(times.begin)},
                  {"end_ns", static_cast<std::int64_t>(times.end)}};
    }
    if (verb == "unmap") {
      floor_.reset();
      return json{{"event", "unmapped"}};
    }
    if (verb == "stats")
      return json{{"event", "stats"},
                  {"torn", engine_.stats().torn},
                  {"copied_bytes", engine_.link_status().copied_bytes}};
    return fail(ErrorCode::kInvalidInput, fmt::format("unknown command '{}'", verb));
  }

  const ReferenceEngine& engine_;
  const Manifest& manifest_;
  Mouth& mouth_;
  std::unique_ptr<FloorCopy> floor_;
  std::mutex mutex_;
  Version committed_;  // guarded by mutex_
};

}  // namespace

Result<> run_bench_engine(const BenchEngineOptions& options) {
  const auto checkpoint = WSYNC_TRY(CheckpointDirectory::open(options.checkpoint));
  engine::reference::ReferenceEngineOptions reference{
      .sidecar_socket = options.sidecar_socket,
      .replica = options.replica,
      .checkpoint = options.checkpoint,
      .take = options.adopt ? control::TakeMode::kAdopt : control::TakeMode::kPieces,
      .step_interval = kStepInterval};
  reference.device = options.device;
  reference.gpu = options.gpu;
  Mouth mouth;
  std::unique_ptr<Commands> commands;
  const auto sink = [&commands, &options](const EngineEvent& event) {
    commands->on_event(event);
    if (options.on_event) options.on_event(event);
  };
  auto engine = WSYNC_TRY(ReferenceEngine::create(std::move(reference), sink));
  commands = std::make_unique<Commands>(*engine, checkpoint.manifest(), mouth);
  engine->start();
  for (std::string line; std::getline(std::cin, line);) commands->obey(line);
  engine->stop();
  return {};
}

}  // namespace wsync::bench
