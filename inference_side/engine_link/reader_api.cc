// The C API of readers (wsync/reader.h) on top of VersionReader.
#include <cstdint>
#include <exception>
#include <limits>
#include <memory>
#include <string>

#include "inference_side/engine_link/version_reader.h"
#include "inference_side/engine_link/wsync/reader.h"
#include "shared/base/fork_guard.h"
#include "shared/base/format.h"
#include "shared/base/limits.h"

namespace {

using wsync::ErrorCode;
using wsync::Result;

wsync::TimePoint deadline_of(int timeout_ms) {
  if (timeout_ms < 0) return wsync::TimePoint{std::numeric_limits<std::int64_t>::max()};
  return wsync::now() + std::chrono::milliseconds(timeout_ms);
}

}  // namespace

struct wsync_reader {
  wsync::HomeProcess home;
  std::unique_ptr<wsync::engine::VersionReader> reader;
  std::string error;  // of the last call that failed

  // Runs `body`, a function that returns a Result<>. No exception may leave it, because the caller
  // is C.
  template <class Body>
  int run(Body body) {
    try {
      const Result<> result = body();
      if (result) return 0;
      error = result.error().message();
      if (result.error().code() == ErrorCode::kDeadline) return WSYNC_READER_TIMEOUT;
    } catch (const std::exception& thrown) {
      error = thrown.what();
    }
    return -1;
  }
};

namespace {

bool is_here(const wsync_reader* reader) { return reader != nullptr && reader->home.is_here(); }

Result<> check_open(const wsync_reader& reader) {
  if (reader.reader->is_open()) return {};
  return wsync::fail(ErrorCode::kInvalidInput, "no version is open: call wsync_reader_open first");
}

}  // namespace

wsync_reader* wsync_reader_create(const char* socket_path, const char* name) {
  wsync::close_descriptors_in_children();
  if (socket_path == nullptr || name == nullptr) return nullptr;
  try {
    const std::string own(name);
    if (own.empty() || own.size() > wsync::limits::kReplicaNameBytes) return nullptr;
    auto reader = wsync::engine::VersionReader::create(socket_path, own);
    if (!reader) return nullptr;
    return std::make_unique<wsync_reader>(
               wsync_reader{.home = {}, .reader = std::move(*reader), .error = {}})
        .release();
  } catch (const std::exception&) {
    return nullptr;
  }
}

int wsync_reader_open(wsync_reader* reader, const wsync_reader_want* want, int timeout_ms,
                      wsync_version* opened) {
  if (!is_here(reader) || want == nullptr) return -1;
  return reader->run([&]() -> Result<> {
    wsync::engine::VersionReader::Choice choice;
    if (want->has_step != 0) choice.step = want->step;
    choice.after = {.epoch = want->after.epoch, .step = want->after.step};
    const wsync::Version version = WSYNC_TRY(reader->reader->open(choice, deadline_of(timeout_ms)));
    if (opened != nullptr) *opened = {.epoch = version.epoch, .step = version.step};
    return {};
  });
}

int wsync_reader_count(wsync_reader* reader, uint32_t* count) {
  if (!is_here(reader) || count == nullptr) return -1;
  return reader->run([&]() -> Result<> {
    WSYNC_TRY(check_open(*reader));
    *count = static_cast<std::uint32_t>(reader->reader->manifest().size());
    return {};
  });
}

int wsync_reader_tensor(wsync_reader* reader, uint32_t tensor, wsync_tensor_info* info,
                        const void** data) {
  if (!is_here(reader)) return -1;
  return reader->run([&]() -> Result<> {
    WSYNC_TRY(check_open(*reader));
    const wsync::Manifest& manifest = reader->reader->manifest();
    if (tensor >= manifest.size())
      return wsync::fail(ErrorCode::kInvalidInput,
                         fmt::format("the version has {} tensors, so number {} does not exist",
                                     manifest.size(), tensor));
    const wsync::TensorInfo& described = manifest.tensor(tensor);
    if (info != nullptr)
      *info = {.name = described.name.c_str(),
               .dtype = wsync::dtype_name(described.dtype).data(),
               .shape = described.shape.data(),
               .shape_count = described.shape.size(),
               .bytes = manifest.byte_size(tensor)};
    if (data != nullptr) *data = reader->reader->tensor(tensor).data();
    return {};
  });
}

void wsync_reader_close(wsync_reader* reader) {
  if (is_here(reader)) reader->reader->close();
}

const char* wsync_reader_error(wsync_reader* reader) {
  if (reader == nullptr) return "no reader";
  if (const auto here = reader->home.check("wsync_reader"); !here) {
    thread_local std::string sentence;
    sentence = here.error().message();
    return sentence.c_str();
  }
  return reader->error.c_str();
}

void wsync_reader_destroy(wsync_reader* reader) {
  if (is_here(reader)) delete reader;
}
