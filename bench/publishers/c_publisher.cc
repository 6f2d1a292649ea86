#include "bench/publishers/c_publisher.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <fstream>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <sys/mman.h>
#include <vector>

#include "bench/peers/model_source.h"
#include "bench/publishers/weight_changes.h"
#include "bench/sync/floor.h"
#include "shared/base/bytes.h"
#include "shared/base/check.h"
#include "shared/base/clock.h"
#include "shared/base/format.h"
#include "shared/base/stream_copy.h"
#include "shared/weights/dtype.h"
#include "trainer_side/plugin/wsync/trainer.h"

namespace wsync::bench {
namespace {

using nlohmann::json;

constexpr int kWaitMs = 600'000;  // as in publish.py

void say(const json& line) {
  const std::string text = line.dump() + "\n";
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

Result<json> read_json(const std::string& path) {
  std::ifstream file(path);
  json read = json::parse(file, nullptr, false);
  if (read.is_object()) return read;
  return fail(ErrorCode::kInvalidInput, path + ": expected a JSON object");
}

std::int64_t process_time_ns() {
  timespec time{};
  WSYNC_CHECK(::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time) == 0,
              "a process has a processor time clock");
  return time.tv_sec * 1'000'000'000 + time.tv_nsec;
}

std::int64_t monotonic_ns() { return static_cast<std::int64_t>(now()); }

struct Unmap {
  std::size_t bytes = 0;
  void operator()(void* memory) const { ::munmap(memory, bytes); }
};

class CPublisher {
 public:
  CPublisher() = default;
  CPublisher(const CPublisher&) = delete;
  CPublisher& operator=(const CPublisher&) = delete;
  ~CPublisher() { wsync_trainer_destroy(trainer_); }

  Result<> start(const json& job) {
    const json list = WSYNC_TRY(read_json(job.at("tensors")));
    model_.resize(list.at("size"));
    WSYNC_TRY(read_source(job.at("model"), model_));
    const auto settings = job.at("settings").get<std::vector<std::string>>();
    std::vector<const char*> texts;
    for (const std::string& setting : settings) texts.push_back(setting.c_str());
    const wsync_trainer_options options{.config_file = nullptr,
                                        .settings = texts.data(),
                                        .setting_count = texts.size(),
                                        .rank = 0,
                                        .world_size = 1};
    WSYNC_TRY(check(wsync_trainer_create(&options, &trainer_), "wsync_trainer_create"));
    for (const json& tensor : list.at("tensors")) WSYNC_TRY(add(tensor));
    return check(wsync_trainer_start(trainer_), "wsync_trainer_start");
  }

  // Publishes, waits until the replicas serve it, and returns the times. In place: the weights are
  // written to the version before, which is not measured.
  Result<json> publish(const std::string& kind, std::uint64_t stamp) {
    const bool in_place = kind == kPublishInPlace;
    if (kind != kPublishChanged)
      for (const auto begin : stamped_) std::memcpy(begin.data(), &stamp, begin.size());
    wsync_draft draft = 0;
    if (in_place) draft = WSYNC_TRY(written());
    wsync_publish id = 0;
    wsync_publish_status status{};
    const std::int64_t cpu_before = process_time_ns();
    const std::int64_t begin = monotonic_ns();
    if (in_place)
      WSYNC_TRY(check(wsync_trainer_end(trainer_, draft, &id), "wsync_trainer_end"));
    else
      WSYNC_TRY(check(wsync_trainer_publish(trainer_, 0, &id), "wsync_trainer_publish"));
    const std::int64_t returned = monotonic_ns();
    const std::int64_t cpu_returned = process_time_ns();
    WSYNC_TRY(wait(id, WSYNC_PUBLISH_STAGED, nullptr));
    const std::int64_t staged = monotonic_ns();
    WSYNC_TRY(wait(id, WSYNC_PUBLISH_COMMITTED, &status));
    const std::int64_t end = monotonic_ns();
    const std::int64_t cpu_end = process_time_ns();
    return json{{"event", "published"},
                {"snapshot_ns", returned - begin},
                {"staged_ns", staged - begin},
                {"whole_ns", end - begin},
                {"paused_ns", status.paused_ns},
                {"snapshot_cpu_ns", cpu_returned - cpu_before},
                {"cpu_ns", cpu_end - cpu_before},
                {"replicas", status.replicas},
                {"digest", fmt::format("{:016x}{:016x}", status.content_digest[1],
                                       status.content_digest[0])}};
  }

  Result<json> change(const std::string& how, double share, std::uint64_t seed) {
    if (!(share >= 0 && share <= 1) || (how != "elements" && how != "tensors"))
      return fail(ErrorCode::kInvalidInput,
                  fmt::format("expected elements or tensors, and a share from 0 to 1, received: {} "
                              "{}",
                              how, share));
    const WeightChanges done = how == "elements" ? change_elements(changing_, share, seed)
                                                 : change_tensors(changing_, share, seed);
    return json{{"event", "changed"}, {"elements", done.elements}, {"bytes", done.bytes}};
  }

  Result<json> load(const std::string& file) {
    Bytes loaded(model_.size());
    WSYNC_TRY(read_source(file, loaded));
    WeightChanges done;
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      const std::span<std::byte> own = changing_[i].bytes;
      const auto other = std::span(loaded).subspan(tensors_[i].offset, own.size());
      const std::size_t element = changing_[i].element_bytes;
      for (std::size_t at = 0; at < own.size(); at += element)
        if (std::memcmp(&own[at], &other[at], element) != 0) {
          ++done.elements;
          done.bytes += element;
        }
      std::ranges::copy(other, own.begin());  // the library reads the memory where it is
    }
    return json{{"event", "changed"}, {"elements", done.elements}, {"bytes", done.bytes}};
  }

  // The floor of a snapshot: a copy of the weights to memory like that of a snapshot.
  Result<json> floor(const FloorWay& way) {
    if (!floor_memory_) WSYNC_TRY(map_floor());
    const PieceCopy::Times times = floor_.copy(way);
    return json{{"event", "copied"}, {"ns", (times.end - times.begin).count()}};
  }

 private:
  // Memory that is shared as that of a snapshot is, and touched.
  Result<> map_floor() {
    void* const memory = ::mmap(nullptr, model_.size(), PROT_READ | PROT_WRITE,
                                MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (memory == MAP_FAILED) return fail_errno("map memory for the floor of a snapshot", errno);
    floor_memory_ = {memory, Unmap{model_.size()}};
    const std::span to(static_cast<std::byte*>(memory), model_.size());
    for (const Tensor& tensor : tensors_)
      floor_.add(to.subspan(tensor.offset, tensor.bytes.size()), tensor.bytes);
    return {};
  }

  // A version with the weights in it.
  Result<wsync_draft> written() {
    wsync_draft draft = 0;
    WSYNC_TRY(check(wsync_trainer_begin(trainer_, 0, &draft), "wsync_trainer_begin"));
    for (const Tensor& tensor : tensors_) {
      void* data = nullptr;
      std::uint64_t bytes = 0;
      WSYNC_TRY(check(wsync_trainer_map(trainer_, draft, tensor.name.c_str(), &data, &bytes),
                      "wsync_trainer_map"));
      if (bytes != tensor.bytes.size())
        return fail(ErrorCode::kInternal,
                    fmt::format("tensor {} has {} bytes in the version, {} here", tensor.name,
                                bytes, tensor.bytes.size()));
      copy_streaming({static_cast<std::byte*>(data), bytes}, tensor.bytes);
    }
    return draft;
  }

  static Result<> check(wsync_code code, const char* what) {
    if (code == WSYNC_OK) return {};
    return fail(ErrorCode::kRefused, fmt::format("{}: {}", what, wsync_trainer_error()));
  }

  Result<> wait(wsync_publish id, wsync_publish_state state, wsync_publish_status* status) {
    return check(wsync_trainer_wait(trainer_, id, state, kWaitMs, status), "wsync_trainer_wait");
  }

  Result<> add(const json& tensor) {
    const std::string name = tensor.at("name");
    const std::string dtype = tensor.at("dtype");
    const auto shape = tensor.at("shape").get<std::vector<std::uint64_t>>();
    const auto bytes = std::span(model_).subspan(tensor.at("offset"), tensor.at("bytes"));
    stamped_.push_back(bytes.first(std::min(bytes.size(), sizeof(std::uint64_t))));
    const auto type = parse_dtype(dtype);
    if (!type)
      return fail(ErrorCode::kInvalidInput, fmt::format("tensor {}: type {}", name, dtype));
    changing_.push_back(
        {.name = name, .element_bytes = std::max(dtype_bits(*type) / 8, 1U), .bytes = bytes});
    tensors_.push_back({.name = name, .offset = tensor.at("offset"), .bytes = bytes});
    const wsync_trainer_tensor described{.name = name.c_str(),
                                         .dtype = dtype.c_str(),
                                         .shape = shape.data(),
                                         .shape_count = shape.size(),
                                         .ranges = nullptr,
                                         .range_count = 0,
                                         .data = bytes.data(),
                                         .read = nullptr,
                                         .user = nullptr};
    return check(wsync_trainer_add_tensor(trainer_, &described), "wsync_trainer_add_tensor");
  }

  struct Tensor {
    std::string name;
    std::uint64_t offset = 0;  // in model_
    std::span<const std::byte> bytes;
  };

  Bytes model_;
  std::vector<Tensor> tensors_;
  std::unique_ptr<void, Unmap> floor_memory_;
  PieceCopy floor_;
  std::vector<std::span<std::byte>> stamped_;  // the beginning of each tensor
  std::vector<ChangedTensor> changing_;
  wsync_trainer* trainer_ = nullptr;
};

Result<json> obey(CPublisher& publisher, const std::string& line) {
  std::istringstream words(line);
  std::string verb;
  std::string kind;
  std::uint64_t number = 0;
  words >> verb >> kind;
  if (verb == "load" && !kind.empty()) return publisher.load(kind);
  if (double share = 0; verb == "change" && words >> share >> number)
    return publisher.change(kind, share, number);
  words >> number;
  const auto copies = available_copy_kinds();
  const auto copy = std::ranges::find(copies, kind, copy_kind_name);
  if (words && verb == "publish") return publisher.publish(kind, number);
  if (words && verb == "floor" && copy != copies.end() && number > 0)
    return publisher.floor({.kind = *copy, .threads = static_cast<unsigned>(number)});
  return fail(ErrorCode::kInvalidInput,
              "expected `publish KIND STAMP`, `change HOW SHARE SEED`, `load FILE` or `floor KIND "
              "THREADS`, received: " +
                  line);
}

}  // namespace

Result<> run_c_publisher(const std::string& job_file) {
  try {
    const json job = WSYNC_TRY(read_json(job_file));
    CPublisher publisher;
    WSYNC_TRY(publisher.start(job));
    say({{"event", "ready"}});
    for (std::string line; std::getline(std::cin, line);) {
      const Result<json> answer = obey(publisher, line);
      say(answer ? *answer : json{{"event", "failed"}, {"why", answer.error().message()}});
    }
    return {};
  } catch (const json::exception& error) {
    return fail(ErrorCode::kInvalidInput,
                fmt::format("{} or its list of tensors: {}", job_file, error.what()));
  }
}

}  // namespace wsync::bench
