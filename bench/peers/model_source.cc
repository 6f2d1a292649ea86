#include "bench/peers/model_source.h"

#include <algorithm>
#include <cerrno>
#include <fcntl.h>
#include <fstream>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "shared/base/format.h"
#include "shared/base/unique_fd.h"
#include "shared/base/units.h"
#include "shared/observe/trace/text_file.h"
#include "shared/weights/checkpoint_dir.h"

namespace wsync::bench {
namespace {

constexpr std::uint64_t kSourcePieceBytes = 16 * limits::kMiB;

Result<Digest> write_model(const std::string& path, const ModelSource& source,
                           const CheckpointDirectory& checkpoint) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  Digester digester;
  std::vector<std::byte> piece(kSourcePieceBytes);
  for (std::size_t t = 0; t < source.tensors.size(); ++t) {
    const SourceTensor& tensor = source.tensors[t];
    file.seekp(static_cast<std::streamoff>(tensor.offset));
    for (std::uint64_t at = 0; at < tensor.bytes; at += piece.size()) {
      const auto part =
          std::span(piece).first(std::min<std::uint64_t>(piece.size(), tensor.bytes - at));
      WSYNC_TRY(checkpoint.read(t, at, part));
      digester.update(part);
      file.write(reinterpret_cast<const char*>(part.data()),
                 static_cast<std::streamsize>(part.size()));
    }
  }
  file.close();
  if (!file)
    return fail(ErrorCode::kIo,
                fmt::format("{}: cannot write {} bytes; check whether the disk is full", path,
                            source.size));
  // Sync now, or the kernel would write the file to disk during the first rounds.
  const UniqueFd written(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!written.valid() || ::fsync(written.get()) != 0) return fail_errno(path, errno);
  return digester.finish();
}

Result<> lay_out(ModelSource& source, const Manifest& manifest) {
  std::uint64_t at = 0;
  for (std::size_t t = 0; t < manifest.size(); ++t) {
    const std::uint64_t bytes = manifest.byte_size(t);
    if (bytes == 0)
      return fail(ErrorCode::kInvalidInput,
                  fmt::format("{} contains no weights", describe(manifest.tensor(t))));
    source.tensors.push_back({.info = manifest.tensor(t), .offset = at, .bytes = bytes});
    source.bytes += bytes;
    source.size = at + bytes;
    at = (source.size + kSourceAlignment - 1) / kSourceAlignment * kSourceAlignment;
  }
  return {};
}

}  // namespace

Result<ModelSource> make_source(const std::string& directory,
                                const std::vector<std::string>& checkpoints) {
  ModelSource source;
  Digest layout;
  for (const std::string& path : checkpoints) {
    const auto checkpoint = WSYNC_TRY(CheckpointDirectory::open(path));
    if (source.tensors.empty()) {
      WSYNC_TRY(lay_out(source, checkpoint.manifest()));
      layout = checkpoint.manifest().layout_digest();
    }
    if (checkpoint.manifest().layout_digest() != layout)
      return fail(ErrorCode::kInvalidInput, fmt::format("the tensors of {} differ from those of {}",
                                                        path, checkpoints.front()));
    source.models.push_back(fmt::format("{}/model{}.raw", directory, source.models.size()));
    auto digest = WSYNC_TRY(write_model(source.models.back(), source, checkpoint));
    source.digests.push_back(digest);
  }
  nlohmann::json tensors = nlohmann::json::array();
  for (const SourceTensor& tensor : source.tensors)
    tensors.push_back({{"name", tensor.info.name},
                       {"dtype", dtype_name(tensor.info.dtype)},
                       {"shape", tensor.info.shape},
                       {"offset", tensor.offset},
                       {"bytes", tensor.bytes}});
  source.list = directory + "/tensors.json";
  const nlohmann::json list = {{"size", source.size}, {"tensors", std::move(tensors)}};
  WSYNC_TRY(trace::write_text_file(source.list, list.dump()));
  return source;
}

Result<> read_source(const std::string& path, std::span<std::byte> into) {
  std::ifstream file(path, std::ios::binary);
  if (!file.read(reinterpret_cast<char*>(into.data()), static_cast<std::streamsize>(into.size())))
    return fail(ErrorCode::kInvalidInput, fmt::format("{} ends before byte {}", path, into.size()));
  return {};
}

Digest source_digest(const ModelSource& source, std::span<const std::byte> memory) {
  Digester digester;
  for (const SourceTensor& tensor : source.tensors)
    digester.update(memory.subspan(tensor.offset, tensor.bytes));
  return digester.finish();
}

}  // namespace wsync::bench
