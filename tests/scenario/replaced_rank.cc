// A rank of a trainer that takes the place of one that was lost, or only stands still. Has the same
// share of a checkpoint as trainer_rank, says the same events and obeys some of its commands; the C
// API has no name for its incarnation.
//
// Usage: replaced_rank INCARNATION RANK WORLD_SIZE CHECKPOINT [KEY=VALUE]...
// Commands: publish STEP, wait STATE TIMEOUT_MS, quit.
#include <cstdlib>
#include <iostream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "shared/base/log.h"
#include "shared/config/sources.h"
#include "shared/config/trainer_config.h"
#include "tests/scenario/rank_part.h"
#include "trainer_side/plugin/trainer.h"

namespace {

using Json = nlohmann::json;
using wsync::Error;
using wsync::control::PublishState;
using wsync::publish::RankTensor;

// Codes as those of the C API.
void say(const char* event, const Error* error, Json more = Json::object()) {
  more["event"] = event;
  more["code"] = error == nullptr ? 0 : static_cast<int>(error->code()) + 1;
  more["error"] = error == nullptr ? "" : error->message();
  std::cout << more.dump() << std::endl;
}

void say_view(const char* event, const wsync::Result<wsync::plugin::PublishView>& view) {
  if (!view) return say(event, &view.error());
  const auto& status = view->status;
  const Error failed(status.code, status.reason);
  say(event, status.state == PublishState::kFailed ? &failed : nullptr,
      {{"state", static_cast<int>(status.state)},
       {"version", status.version.to_string()},
       {"digest", status.content_digest.to_string()}});
}

void obey(wsync::plugin::Trainer& trainer, const wsync::plugin::RankTensors& tensors) {
  std::uint64_t publish = 0;
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream words(line);
    std::string command;
    words >> command;
    if (command == "publish") {
      std::uint64_t step = 0;
      words >> step;
      const auto id = trainer.publish_async(tensors, step);
      if (!id) {
        say("published", &id.error());
        continue;
      }
      publish = *id;
      say_view("published", trainer.wait(publish, PublishState::kSnapshotted, std::nullopt));
    } else if (command == "wait") {
      int state = 0;
      int timeout_ms = 0;
      words >> state >> timeout_ms;
      say_view("waited", trainer.wait(publish, static_cast<PublishState>(state),
                                      wsync::now() + std::chrono::milliseconds(timeout_ms)));
    } else {
      return;
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 5) return 2;
  wsync::plugin::TrainerOptions options;
  options.incarnation = static_cast<std::uint32_t>(std::strtoul(argv[1], nullptr, 10));
  options.rank = static_cast<std::uint32_t>(std::strtoul(argv[2], nullptr, 10));
  options.world_size = static_cast<std::uint32_t>(std::strtoul(argv[3], nullptr, 10));
  const auto directory = wsync::CheckpointDirectory::open(argv[4]);
  if (!directory) return 2;
  std::vector<wsync::RankPart> parts;
  for (std::size_t i = 0; i < directory->manifest().size(); ++i)
    parts.push_back(wsync::rank_part(*directory, i, options.rank, options.world_size));
  auto tensors = std::make_shared<std::vector<RankTensor>>();
  for (const wsync::RankPart& part : parts)
    tensors->push_back(
        {.info = part.info, .range = part.range, .bytes = std::span<const std::byte>(part.bytes)});
  wsync::config::Sources sources{.environment = wsync::config::process_environment()};
  sources.set.assign(argv + 5, argv + argc);
  auto config = wsync::config::load_trainer(sources);
  if (!config) {
    say("failed", &config.error());
    return 1;
  }
  wsync::log_init({.level = config->log.level, .role = "replaced rank"});
  options.config = std::move(*config);
  auto trainer = wsync::plugin::Trainer::create(std::move(options));
  const wsync::Result<> started = trainer ? (*trainer)->start() : wsync::fail(trainer.error());
  if (!started) {
    say("failed", &started.error());
    return 1;
  }
  say("started", nullptr);
  obey(**trainer, tensors);
  return 0;
}
