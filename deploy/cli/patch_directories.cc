#include "deploy/cli/patch_directories.h"

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <vector>

#include "inference_side/reload/layout_check.h"
#include "shared/base/format.h"
#include "shared/base/weight_limits.h"
#include "shared/weights/content_digest.h"
#include "shared/weights/patch/block_applier.h"
#include "shared/weights/patch/block_maker.h"
#include "shared/weights/patch/format.h"
#include "shared/weights/weight_directory.h"

namespace wsync::cli {
namespace {

std::string nearest_tensor(const std::string& name, const Manifest& manifest) {
  std::vector<std::string_view> names;
  for (const TensorInfo& tensor : manifest.tensors()) names.push_back(tensor.name);
  const std::string nearest = reload::nearest_name(name, names);
  return nearest.empty() ? "" : fmt::format("; the nearest name there is {}", nearest);
}

// Calls `visit(tensor, offset, bytes)` for each leaf of the tensors.
template <class Visit>
Result<> for_each_leaf(const Manifest& manifest, Visit&& visit) {
  for (std::uint32_t tensor = 0; tensor < manifest.size(); ++tensor) {
    const std::uint64_t size = manifest.byte_size(tensor);
    for (std::uint64_t at = 0; at < size; at += limits::kLeafBytes)
      WSYNC_TRY(visit(tensor, at, std::min(limits::kLeafBytes, size - at)));
  }
  return {};
}

Result<Digest> digest_of_directory(const CheckpointDirectory& directory,
                                   const OnPatchProgress& on_progress) {
  const Manifest& manifest = directory.manifest();
  ContentDigester digester(manifest);
  Bytes leaf;
  std::uint64_t done = 0;
  WSYNC_TRY(for_each_leaf(
      manifest, [&](std::uint32_t tensor, std::uint64_t at, std::uint64_t bytes) -> Result<> {
        WSYNC_TRY(on_progress("checking the base", done, manifest.total_bytes()));
        leaf.resize(bytes);
        WSYNC_TRY(directory.read(tensor, at, leaf));
        done += bytes;
        return digester.add(tensor, at, leaf);
      }));
  return WSYNC_TRY(digester.finish()).root;
}

}  // namespace

Result<> check_same_layout(const Manifest& first, std::string_view first_name,
                           const Manifest& second, std::string_view second_name) {
  for (const TensorInfo& tensor : first.tensors()) {
    const auto other = second.find(tensor.name);
    if (!other)
      return fail(
          ErrorCode::kInvalidInput,
          fmt::format("{} and {} have other tensors: {} has no {}{}", first_name, second_name,
                      second_name, tensor.name, nearest_tensor(tensor.name, second)));
    if (second.tensor(*other) != tensor)
      return fail(
          ErrorCode::kInvalidInput,
          fmt::format("{} and {} have other tensors: {} in {}, {} in {}", first_name, second_name,
                      describe(tensor), first_name, describe(second.tensor(*other)), second_name));
  }
  for (const TensorInfo& tensor : second.tensors())
    if (!first.find(tensor.name))
      return fail(
          ErrorCode::kInvalidInput,
          fmt::format("{} and {} have other tensors: {} has no {}{}", first_name, second_name,
                      first_name, tensor.name, nearest_tensor(tensor.name, first)));
  return {};
}

Result<MadePatch> make_directory_patch(const CheckpointDirectory& base,
                                       const CheckpointDirectory& target,
                                       std::uint64_t bucket_bytes,
                                       const OnPatchProgress& on_progress) {
  const Manifest& manifest = base.manifest();
  WSYNC_TRY(check_same_layout(manifest, base.path(), target.manifest(), target.path()));
  const patch::Layout layout(manifest);
  auto builder = WSYNC_TRY(patch::PatchBuilder::create(layout, bucket_bytes));
  patch::BlockMaker maker;
  ContentDigester base_digester(manifest);
  ContentDigester target_digester(manifest);
  Bytes before;
  Bytes after;
  std::uint64_t done = 0;
  WSYNC_TRY(for_each_leaf(
      manifest, [&](std::uint32_t tensor, std::uint64_t at, std::uint64_t bytes) -> Result<> {
        WSYNC_TRY(on_progress("comparing", done, manifest.total_bytes()));
        before.resize(bytes);
        after.resize(bytes);
        WSYNC_TRY(base.read(tensor, at, before));
        WSYNC_TRY(target.read(tensor, at, after));
        WSYNC_TRY(base_digester.add(tensor, at, before));
        WSYNC_TRY(target_digester.add(tensor, at, after));
        for (std::uint64_t in_leaf = 0; in_leaf < bytes; in_leaf += patch::kBlockBytes) {
          const patch::BlockPlace place{
              .tensor = tensor,
              .block = static_cast<std::uint32_t>((at + in_leaf) / patch::kBlockBytes)};
          const std::uint64_t size = layout.block_bytes(place);
          auto block = maker.make(layout, place, std::span(before).subspan(in_leaf, size),
                                  std::span(after).subspan(in_leaf, size));
          if (block) builder.add(std::move(*block));
        }
        done += bytes;
        return {};
      }));
  MadePatch made;
  made.base = WSYNC_TRY(base_digester.finish()).root;
  made.target = WSYNC_TRY(target_digester.finish()).root;
  made.patch = WSYNC_TRY(builder.finish(made.base, made.target));
  return made;
}

Result<> apply_directory_patch(const patch::PatchFile& file, const CheckpointDirectory& base,
                               const std::string& path, const OnPatchProgress& on_progress) {
  const Manifest& manifest = base.manifest();
  WSYNC_TRY(check_same_layout(file.manifest(), "the patch", manifest, base.path()));
  std::error_code error;
  if (std::filesystem::exists(path, error) && !std::filesystem::is_empty(path, error))
    return fail(ErrorCode::kInvalidInput,
                fmt::format("{}: exists already; give the name of a new directory", path));
  const patch::Link& link = file.patch().index().link();
  const auto found = WSYNC_TRY(digest_of_directory(base, on_progress));
  if (found != link.base)
    return fail(ErrorCode::kDigestMismatch,
                fmt::format("{}: it is not the base of this patch: its content has the digest {}, "
                            "the patch was made for {}{}",
                            base.path(), found.to_string(), link.base.to_string(),
                            found == link.target ? "; it is what the patch leads to" : ""));
  patch::BlockApplier applier(file.layout());
  ContentDigester digester(manifest);
  std::uint64_t done = 0;
  const TensorSource source = [&](std::size_t index, std::uint64_t offset,
                                  std::span<std::byte> out) -> Result<> {
    const auto tensor = static_cast<std::uint32_t>(index);
    for (std::uint64_t at = 0; at < out.size(); at += limits::kLeafBytes) {
      WSYNC_TRY(on_progress("writing", done, manifest.total_bytes()));
      const auto leaf =
          out.subspan(at, std::min<std::uint64_t>(limits::kLeafBytes, out.size() - at));
      WSYNC_TRY(base.read(tensor, offset + at, leaf));
      const auto first = static_cast<std::uint32_t>((offset + at) / patch::kBlockBytes);
      const auto end = first + static_cast<std::uint32_t>(limits::kLeafBytes / patch::kBlockBytes);
      for (const patch::BlockView& block : file.patch().blocks(tensor, first, end))
        WSYNC_TRY(
            applier.apply(block, leaf.subspan(patch::Layout::offset(block.place) - offset - at,
                                              file.layout().block_bytes(block.place))));
      WSYNC_TRY(digester.add(tensor, offset + at, leaf));
      done += leaf.size();
    }
    return {};
  };
  const auto prove = [&](const std::string& /*directory*/) -> Result<> {
    WSYNC_TRY(on_progress("writing", done, manifest.total_bytes()));
    const auto written = WSYNC_TRY(digester.finish()).root;
    if (written == link.target) return {};
    return fail(ErrorCode::kDigestMismatch,
                fmt::format("{}: the patched weights have the digest {}, expected {}; nothing was "
                            "kept",
                            path, written.to_string(), link.target.to_string()));
  };
  return write_checkpoint_directory(path, manifest, source,
                                    {.other_files = WSYNC_TRY(read_model_files(base.path())),
                                     .metadata = {},
                                     .write_more = prove});
}

}  // namespace wsync::cli
