// One rank of a trainer, over the C API: has its share of a checkpoint, publishes when told to on
// standard input and says what came of it as JSON lines.
//
// Usage: trainer_rank RANK WORLD_SIZE CHECKPOINT [rows] [KEY=VALUE | fault:KIND:TENSOR]...
// rows: every tensor is cut along its first dimension.
// Faults: shape (describes the tensor with another shape), gap, overlap (has less or more of it),
// fail (its read callback fails), hang (its read callback says so and does not return), gate (its
// read callback says so, and returns when there is a file CHECKPOINT.go, or fails when there is
// CHECKPOINT.fail).
// Commands: publish STEP, publish_async STEP, wait STATE TIMEOUT_MS, roll_back, check, quit;
// draft STEP: writes the version in place: puts tensors, parts of tensors, and through pointers;
// first_draft STEP: the same without a description, all put; stray: writes once more through the
// last pointer of a draft;
// change STEP: other values for every tensor, from the step's number, without an answer;
// scatter STEP PLACES: other values at so many places of the whole model, and rewrite STEP: in
// every byte of it, without an answer. tests/soak/soak_weights.py computes the same; fork [again |
// run | spawn]: a child that stays; fork_and_call: one that calls every function.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <thread>
#include <unistd.h>
#include <vector>
#include <wsync/trainer.h>

#include "tests/scenario/forking.h"
#include "tests/scenario/rank_part.h"

namespace {

using Json = nlohmann::json;

using wsync::say;

struct Part : wsync::RankPart {
  std::vector<wsync_range> ranges;
  std::string fault;
  std::string gate;  // the path of its checkpoint
};

Part part_of(const wsync::CheckpointDirectory& directory, std::size_t index, std::uint32_t rank,
             std::uint32_t world_size, bool rows_only) {
  Part part{wsync::rank_part(directory, index, rank, world_size, rows_only)};
  if (part.range)
    part.ranges.push_back(
        {.dim = part.range->dim, .begin = part.range->begin, .length = part.range->length});
  return part;
}

bool exists(const std::string& path) { return ::access(path.c_str(), F_OK) == 0; }

int read_part(void* user, std::uint64_t offset, void* out, std::uint64_t bytes) {
  const auto& part = *static_cast<const Part*>(user);
  if (part.fault == "fail") return 7;
  if (part.fault == "hang") {
    say({{"event", "hanging"}});
    for (;;) ::pause();
  }
  if (part.fault == "gate" && !exists(part.gate + ".go")) {
    say({{"event", "gated"}});
    while (!exists(part.gate + ".go")) {
      if (exists(part.gate + ".fail")) return 7;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  std::memcpy(out, part.bytes.data() + offset, bytes);
  return 0;
}

void add_fault(Part& part, const std::string& kind) {
  part.fault = kind;
  if (kind == "shape") part.info.shape.push_back(1);
  if (kind != "gap" && kind != "overlap") return;
  if (part.ranges.empty()) std::abort();  // the test names a tensor that is not cut
  if (kind == "gap") part.ranges[0].length -= 1, part.ranges[0].begin += 1;
  if (kind == "overlap") {
    part.ranges[0].length += 1, part.ranges[0].begin -= 1;
    part.bytes.resize(2 * part.bytes.size());
  }
}

int add_tensors(wsync_trainer* trainer, std::vector<Part>& parts) {
  for (std::size_t i = 0; i < parts.size(); ++i) {
    Part& part = parts[i];
    const bool in_memory = i % 2 == 0 && part.fault.empty();
    const std::string dtype(wsync::dtype_name(part.info.dtype));
    const wsync_trainer_tensor tensor{.name = part.info.name.c_str(),
                                      .dtype = dtype.c_str(),
                                      .shape = part.info.shape.data(),
                                      .shape_count = part.info.shape.size(),
                                      .ranges = part.ranges.data(),
                                      .range_count = part.ranges.size(),
                                      .data = in_memory ? part.bytes.data() : nullptr,
                                      .read = in_memory ? nullptr : read_part,
                                      .user = &part};
    if (wsync_trainer_add_tensor(trainer, &tensor) != WSYNC_OK) return 1;
  }
  return 0;
}

void say_code(const char* event, wsync_code code, Json more = Json::object()) {
  more["event"] = event;
  more["code"] = static_cast<int>(code);
  more["error"] = code == WSYNC_OK ? "" : wsync_trainer_error();
  say(more);
}

void say_status(wsync_code code, const wsync_publish_status& status) {
  char digest[33];
  std::snprintf(digest, sizeof digest, "%016llx%016llx",
                static_cast<unsigned long long>(status.content_digest[1]),
                static_cast<unsigned long long>(status.content_digest[0]));
  say_code("waited", code,
           {{"state", static_cast<int>(status.state)},
            {"version",
             std::to_string(status.version.epoch) + "." + std::to_string(status.version.step)},
            {"digest", digest},
            {"bytes", status.bytes},
            {"replicas", status.replicas},
            {"snapshot_ns", status.snapshot_ns},
            {"reason", std::string(status.reason)}});
}

// The first byte of each tensor becomes that of the step. A publish reads the tensors before it
// returns.
void change(std::vector<Part>& parts, std::uint64_t step) {
  for (Part& part : parts)
    if (!part.bytes.empty()) part.bytes.front() = static_cast<std::byte>(step);
}

// The numbers are primes, so that the places of a step lie in many tensors, and those of the next
// step are others.
void scatter(std::vector<Part>& parts, std::uint64_t step, std::uint64_t places) {
  for (std::uint64_t k = 0; k < places; ++k) {
    std::vector<std::byte>& bytes = parts[(step * 31 + k * 7) % parts.size()].bytes;
    if (!bytes.empty())
      bytes[(step * 7919 + k * 104'729) % bytes.size()] = static_cast<std::byte>(step + 13 * k);
  }
}

void rewrite(std::vector<Part>& parts, std::uint64_t step) {
  const auto mask = static_cast<std::byte>(step | 1);  // never 0: every byte changes
  for (Part& part : parts)
    for (std::byte& byte : part.bytes) byte ^= mask;
}

wsync_trainer_part whole_part(const Part& part, const std::string& dtype) {
  return {.name = part.info.name.c_str(),
          .dtype = dtype.c_str(),
          .publish_dtype = nullptr,
          .shape = part.info.shape.data(),
          .shape_count = part.info.shape.size(),
          .ranges = part.ranges.data(),
          .range_count = part.ranges.size(),
          .data = part.bytes.data(),
          .scales = nullptr,
          .scale_count = 0,
          .compute_scales = 0};
}

// Rows of the first dimension, or along the range of this rank, in two calls.
wsync_code put_halves(wsync_trainer* trainer, wsync_draft draft, const Part& part,
                      wsync_trainer_part whole) {
  wsync_range range{.dim = 0, .begin = 0, .length = part.info.shape.at(0)};
  if (!part.ranges.empty()) range = part.ranges.front();
  if (range.dim != 0 || range.length < 2) return wsync_trainer_put(trainer, draft, &whole);
  const std::uint64_t bytes_of_row = part.bytes.size() / range.length;
  wsync_range half = range;
  half.length = range.length / 2;
  whole.ranges = &half;
  whole.range_count = 1;
  if (const auto code = wsync_trainer_put(trainer, draft, &whole); code != WSYNC_OK) return code;
  whole.data = part.bytes.data() + half.length * bytes_of_row;
  half = {.dim = 0, .begin = range.begin + half.length, .length = range.length - half.length};
  return wsync_trainer_put(trainer, draft, &whole);
}

struct Draft {
  void* last_pointer = nullptr;
};

wsync_code write_draft(wsync_trainer* trainer, const std::vector<Part>& parts, std::uint64_t step,
                       bool is_first, wsync_publish* publish, Draft& out) {
  if (is_first) wsync_trainer_clear_tensors(trainer);
  wsync_draft draft = 0;
  if (const auto code = wsync_trainer_begin(trainer, step, &draft); code != WSYNC_OK) return code;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const Part& part = parts[i];
    const std::string dtype(wsync::dtype_name(part.info.dtype));
    const wsync_trainer_part whole = whole_part(part, dtype);
    wsync_code code = WSYNC_OK;
    if (i % 3 == 0 && !is_first) {
      std::uint64_t bytes = 0;
      code = wsync_trainer_map(trainer, draft, whole.name, &out.last_pointer, &bytes);
      if (code == WSYNC_OK && bytes != part.bytes.size()) return WSYNC_INTERNAL;
      if (code == WSYNC_OK) std::memcpy(out.last_pointer, part.bytes.data(), bytes);
    } else if (i % 3 == 1 && !part.info.shape.empty()) {
      code = put_halves(trainer, draft, part, whole);
    } else {
      code = wsync_trainer_put(trainer, draft, &whole);
    }
    if (code != WSYNC_OK) return code;
  }
  return wsync_trainer_end(trainer, draft, publish);
}

// In a child.
void call_all(wsync_trainer* trainer, wsync_publish publish) {
  const std::uint64_t shape = 1;
  const wsync_trainer_tensor tensor{
      .name = "t", .dtype = "U8", .shape = &shape, .shape_count = 1, .data = &shape};
  wsync_publish_status status{};
  say_code("add_tensor", wsync_trainer_add_tensor(trainer, &tensor));
  wsync_trainer_clear_tensors(trainer);
  say_code("start", wsync_trainer_start(trainer));
  say_code("publish", wsync_trainer_publish(trainer, 1000, &publish));
  say_code("publish_async", wsync_trainer_publish_async(trainer, 1001, &publish));
  say_code("poll", wsync_trainer_poll(trainer, publish, &status));
  say_code("wait", wsync_trainer_wait(trainer, publish, WSYNC_PUBLISH_COMMITTED, 1000, &status));
  say_code("roll_back", wsync_trainer_roll_back(trainer, {}, 1000, nullptr));
  say_code("check", wsync_trainer_check(trainer));
  wsync_trainer_destroy(trainer);
  wsync_trainer_destroy(trainer);  // nothing has happened
}

void obey(wsync_trainer* trainer, std::vector<Part>& parts) {
  wsync_publish publish = 0;
  Draft draft;
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream words(line);
    std::string command;
    words >> command;
    if (command == "publish" || command == "publish_async") {
      std::uint64_t step = 0;
      words >> step;
      const auto call = command == "publish" ? wsync_trainer_publish : wsync_trainer_publish_async;
      say_code("published", call(trainer, step, &publish));
    } else if (command == "draft" || command == "first_draft") {
      std::uint64_t step = 0;
      words >> step;
      say_code("published",
               write_draft(trainer, parts, step, command == "first_draft", &publish, draft));
    } else if (command == "stray") {
      *static_cast<volatile char*>(draft.last_pointer) = 1;
      say({{"event", "strayed"}});
    } else if (command == "wait") {
      int state = 0;
      int timeout_ms = 0;
      words >> state >> timeout_ms;
      wsync_publish_status status{};
      const auto code = wsync_trainer_wait(
          trainer, publish, static_cast<wsync_publish_state>(state), timeout_ms, &status);
      say_status(code, status);
    } else if (command == "change") {
      std::uint64_t step = 0;
      words >> step;
      change(parts, step);
    } else if (command == "scatter") {
      std::uint64_t step = 0;
      std::uint64_t places = 0;
      words >> step >> places;
      scatter(parts, step, places);
    } else if (command == "rewrite") {
      std::uint64_t step = 0;
      words >> step;
      rewrite(parts, step);
    } else if (command == "roll_back") {
      wsync_rollback result{};
      const auto code = wsync_trainer_roll_back(trainer, {}, 60'000, &result);
      say_code("rolled_back", code, {{"to", result.to.step}});
    } else if (command == "fork") {
      std::string how;
      words >> how;
      wsync::make_idle_child(how);
    } else if (command == "fork_and_call") {
      wsync::in_child([&] { call_all(trainer, publish); });
    } else if (command == "check") {
      say_code("checked", wsync_trainer_check(trainer));
    } else {
      return;
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) return 2;
  const auto rank = static_cast<std::uint32_t>(std::strtoul(argv[1], nullptr, 10));
  const auto world_size = static_cast<std::uint32_t>(std::strtoul(argv[2], nullptr, 10));
  const auto directory = wsync::CheckpointDirectory::open(argv[3]);
  if (!directory) return 2;
  std::vector<Part> parts;
  const bool rows_only = argc > 4 && std::string_view(argv[4]) == "rows";
  for (std::size_t i = 0; i < directory->manifest().size(); ++i)
    parts.push_back(part_of(*directory, i, rank, world_size, rows_only));
  std::vector<const char*> settings;
  for (int i = rows_only ? 5 : 4; i < argc; ++i) {
    const std::string argument = argv[i];
    if (!argument.starts_with("fault:")) {
      settings.push_back(argv[i]);
      continue;
    }
    const std::size_t colon = argument.find(':', 6);
    const auto part = std::ranges::find(parts, argument.substr(colon + 1),
                                        [](const Part& p) { return p.info.name; });
    if (part == parts.end()) return 2;
    part->gate = argv[3];
    add_fault(*part, argument.substr(6, colon - 6));
  }
  const wsync_trainer_options options{.settings = settings.data(),
                                      .setting_count = settings.size(),
                                      .rank = rank,
                                      .world_size = world_size};
  wsync_trainer* trainer = nullptr;
  if (wsync_trainer_create(&options, &trainer) != WSYNC_OK || add_tensors(trainer, parts) != 0 ||
      wsync_trainer_start(trainer) != WSYNC_OK) {
    say({{"event", "failed"}, {"error", wsync_trainer_error()}});
    return 1;
  }
  say({{"event", "started"}});
  obey(trainer, parts);
  wsync_trainer_destroy(trainer);
  return 0;
}
