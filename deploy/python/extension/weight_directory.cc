#include "deploy/python/extension/weight_directory.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <limits>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>
#include <optional>
#include <span>
#include <tuple>
#include <vector>

#include "deploy/python/extension/calls.h"
#include "shared/base/fail_point.h"
#include "shared/base/format.h"
#include "shared/weights/content_digest.h"
#include "shared/weights/weight_directory.h"

namespace nb = nanobind;

namespace wsync::python {
namespace {

// name, dtype, shape, address. The caller keeps the memory alive.
using Given = std::tuple<std::string, std::string, std::vector<std::uint64_t>, std::uintptr_t>;
// epoch, step, digest
using Proof = std::tuple<std::uint32_t, std::uint64_t, std::string>;

// The codes of wsync_code (trainer_side/plugin/wsync/trainer.h) are those of ErrorCode, from 1 on.
Failure failure_of(const Error& error) {
  return {static_cast<int>(error.code()) + 1, error.message()};
}

// Runs `work` without the GIL; throws its error.
template <class T>
T without_gil(const std::function<Result<T>()>& work) {
  std::optional<Result<T>> done;
  {
    const WithoutGil unlocked;
    done.emplace(work());
  }
  if (!*done) raise(failure_of(done->error()));
  return std::move(**done);
}

// Tensors in the memory of Python, in manifest order.
struct Model {
  Manifest manifest;
  std::vector<const std::byte*> data;

  [[nodiscard]] std::span<const std::byte> bytes(std::size_t tensor) const {
    return {data[tensor], manifest.byte_size(tensor)};
  }
};

Result<Model> model_of(const std::vector<Given>& given) {
  std::vector<wsync::TensorInfo> tensors;
  for (const auto& [name, dtype, shape, address] : given) {
    const auto parsed = parse_dtype(dtype);
    if (!parsed)
      return fail(ErrorCode::kInvalidInput,
                  fmt::format("tensor {}: unknown dtype '{}'", name, dtype));
    tensors.push_back({.name = name, .dtype = *parsed, .shape = shape});
  }
  Model model{.manifest = WSYNC_TRY(Manifest::create(std::move(tensors))), .data = {}};
  model.data.resize(given.size());
  for (const auto& [name, dtype, shape, address] : given)
    model.data[model.manifest.find(name).value()] = reinterpret_cast<const std::byte*>(address);
  return model;
}

Result<Digest> digest_of(const Model& model) {
  ContentDigester digester(model.manifest);
  for (std::uint32_t i = 0; i < model.manifest.size(); ++i)
    WSYNC_TRY(digester.add(i, 0, model.bytes(i)));
  const auto digests = WSYNC_TRY(digester.finish());
  return digests.root;
}

// The epoch of a writer that begins: above those of all versions that a folder has.
Result<std::uint32_t> next_weight_epoch(const std::string& folder) {
  std::uint32_t last = 0;
  const auto names = WSYNC_TRY(weight_directories(folder));
  for (const auto& [number, name] : names) {
    const auto opened = CheckpointDirectory::open(folder + "/" + name);
    if (!opened) continue;  // of another program, and not complete
    const auto proof = weight_proof(*opened);
    if (!proof || !*proof) continue;
    last = std::max(last, (**proof).version.epoch);
    if (last == std::numeric_limits<std::uint32_t>::max())
      return fail(ErrorCode::kInvalidInput,
                  fmt::format("{}/{}: it is of version {}, and no epoch is higher; remove it, or "
                              "use another folder",
                              folder, name, (**proof).version.to_string()));
  }
  return last + 1;
}

// NumPy multiplies the sizes other than 0, also those of an empty tensor.
Result<> check_addressable(const std::string& path, const wsync::TensorInfo& info) {
  constexpr std::uint64_t kElementsMax = std::numeric_limits<std::int64_t>::max() / 16;
  std::uint64_t left = kElementsMax;
  for (const std::uint64_t size : info.shape) {
    if (size > left)
      return fail(ErrorCode::kInvalidInput,
                  fmt::format("{}: tensor {} has the shape [{}]; expected sizes whose product, "
                              "those of 0 left out, is at most {}",
                              path, info.name, fmt::join(info.shape, ", "), kElementsMax));
    if (size != 0) left /= size;
  }
  return {};
}

class WeightWriter {
 public:
  WeightWriter(const std::string& folder, std::uint32_t keep, std::uint64_t shard_bytes,
               const std::string& model_files)
      : writer_(without_gil<WeightDirectoryWriter>([&] {
          return WeightDirectoryWriter::open(
              folder, {.keep = keep, .shard_bytes = shard_bytes, .model_files = model_files});
        })) {}

  // Returns the name of the directory, and the digest of its bytes.
  std::tuple<std::string, std::string> write(const std::vector<Given>& given, std::uint32_t epoch,
                                             std::uint64_t step) {
    return without_gil<std::tuple<std::string, std::string>>(
        [&]() -> Result<std::tuple<std::string, std::string>> {
          WeightDirectoryWriter& writer = WSYNC_TRY(open()).get();
          const auto model = WSYNC_TRY(model_of(given));
          const auto digest = WSYNC_TRY(digest_of(model));
          auto name = WSYNC_TRY(writer.write(
              model.manifest, {.version = {.epoch = epoch, .step = step}, .content = digest},
              [&](std::size_t i, std::uint64_t offset, std::span<std::byte> out) -> Result<> {
                std::memcpy(out.data(), model.bytes(i).data() + offset, out.size());
                return {};
              }));
          return std::tuple{std::move(name), digest.to_string()};
        });
  }

  std::string point_to(std::uint32_t epoch, std::uint64_t step) {
    return without_gil<std::string>([&]() -> Result<std::string> {
      return WSYNC_TRY(open()).get().point_to({.epoch = epoch, .step = step});
    });
  }

  std::string latest() {
    return without_gil<std::string>(
        [&]() -> Result<std::string> { return WSYNC_TRY(open()).get().latest(); });
  }

  void close() { writer_.reset(); }

 private:
  Result<std::reference_wrapper<WeightDirectoryWriter>> open() {
    if (writer_) return std::ref(*writer_);
    return fail(ErrorCode::kInvalidInput, "the writer has been closed");
  }

  std::optional<WeightDirectoryWriter> writer_;
};

class WeightReader {
 public:
  WeightReader(const WeightReader&) = delete;
  WeightReader& operator=(const WeightReader&) = delete;
  // Opens the directory that `latest` names.
  explicit WeightReader(const std::string& folder)
      : directory_(without_gil<CheckpointDirectory>(
            [&] { return open_latest_weight_directory(folder); })) {}

  [[nodiscard]] const std::string& path() const { return directory_.path(); }

  [[nodiscard]] std::vector<std::tuple<std::string, std::string, std::vector<std::uint64_t>>>
  tensors() const {
    std::vector<std::tuple<std::string, std::string, std::vector<std::uint64_t>>> all;
    for (const wsync::TensorInfo& info : directory_.manifest().tensors()) {
      if (const auto checked = check_addressable(directory_.path(), info); !checked)
        raise(failure_of(checked.error()));
      all.emplace_back(info.name, std::string(dtype_name(info.dtype)), info.shape);
    }
    return all;
  }

  [[nodiscard]] std::optional<Proof> proof() const {
    const auto proof =
        without_gil<std::optional<WeightProof>>([&] { return weight_proof(directory_); });
    if (!proof) return std::nullopt;
    return Proof{proof->version.epoch, proof->version.step, proof->content.to_string()};
  }

  // Reads every tensor into memory of its size, in the order of tensors(). Returns the digest of
  // what was read.
  [[nodiscard]] std::string read(const std::vector<std::uintptr_t>& into) const {
    return without_gil<std::string>([&]() -> Result<std::string> {
      const Manifest& manifest = directory_.manifest();
      if (into.size() != manifest.size())
        return fail(ErrorCode::kInvalidInput,
                    fmt::format("expected {} addresses, found {}", manifest.size(), into.size()));
      ContentDigester digester(manifest);
      for (std::uint32_t i = 0; i < manifest.size(); ++i) {
        const std::span<std::byte> out(reinterpret_cast<std::byte*>(into[i]),
                                       manifest.byte_size(i));
        WSYNC_TRY(directory_.read(i, 0, out));
        WSYNC_TRY(digester.add(i, 0, out));
      }
      const auto digests = WSYNC_TRY(digester.finish());
      return digests.root.to_string();
    });
  }

 private:
  CheckpointDirectory directory_;
};

}  // namespace

void bind_weight_directory(nb::module_& module) {
  nb::class_<WeightWriter>(module, "WeightWriter")
      .def(nb::init<const std::string&, std::uint32_t, std::uint64_t, const std::string&>(),
           nb::arg("folder"), nb::arg("keep"), nb::arg("shard_bytes"), nb::arg("model_files"))
      .def("write", &WeightWriter::write, nb::arg("tensors"), nb::arg("epoch"), nb::arg("step"))
      .def("point_to", &WeightWriter::point_to, nb::arg("epoch"), nb::arg("step"))
      .def("latest", &WeightWriter::latest)
      .def("close", &WeightWriter::close);
  nb::class_<WeightReader>(module, "WeightReader")
      .def(nb::init<const std::string&>(), nb::arg("folder"))
      .def("path", &WeightReader::path)
      .def("tensors", &WeightReader::tensors)
      .def("proof", &WeightReader::proof)
      .def("read", &WeightReader::read, nb::arg("into"));
  module.def(
      "next_weight_epoch",
      [](const std::string& folder) {
        return without_gil<std::uint32_t>([&] { return next_weight_epoch(folder); });
      },
      nb::arg("folder"));
  // The path of what `latest` names, and what its files are like. Opens none of them.
  module.def(
      "look_at_latest_weights",
      [](const std::string& folder) {
        return without_gil<std::tuple<std::string, std::string>>(
            [&]() -> Result<std::tuple<std::string, std::string>> {
              auto path = WSYNC_TRY(latest_weight_directory(folder));
              auto files = WSYNC_TRY(weight_files_identity(path));
              return std::tuple{std::move(path), std::move(files)};
            });
      },
      nb::arg("folder"));
  module.def(
      "arm_fail_point",
      [](std::string name, std::uint64_t hits) { arm_fail_point(std::move(name), hits); },
      nb::arg("name"), nb::arg("hits"));
}

}  // namespace wsync::python
