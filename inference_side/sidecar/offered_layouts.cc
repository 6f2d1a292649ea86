#include "inference_side/sidecar/offered_layouts.h"

#include <utility>

#include "shared/base/format.h"
#include "shared/weights/parts.h"

namespace wsync::agent {

Result<Manifest> read_layout(std::span<const std::byte> layout) {
  ByteReader reader(layout);
  auto manifest = Manifest::decode(reader);
  if (manifest && !reader.finish("layout"))
    return fail(ErrorCode::kInvalidInput,
                "the layout cannot be read: bytes are left over after its end");
  if (!manifest)
    return fail(ErrorCode::kInvalidInput,
                "the layout cannot be read: " + manifest.error().message());
  return manifest;
}

// How an offer travels.
Result<> OfferedLayouts::cut_transfer(OfferedLayout& known, const control::Announce& announce) {
  if (announce.parts.empty()) {
    known.transfer = known.plan;
    known.transfer_leaves = known.leaves;
    known.part_count = 1;
  } else {
    const auto parts = WSYNC_TRY(Parts::decode(*known.manifest, announce.parts));
    known.transfer = std::make_shared<const BucketPlan>(
        WSYNC_TRY(BucketPlan::create(*known.manifest, announce.bucket_bytes, parts)));
    known.transfer_leaves = std::make_shared<const LeafTable>(*known.manifest, *known.transfer);
    known.part_count = parts.count();
  }
  known.parts = announce.parts;
  return {};
}

// Returns kNotFound if the layout is unknown; the trainer must then send it.
Result<const OfferedLayout*> OfferedLayouts::find_or_read(const control::Announce& announce) {
  OfferedLayout& known = layouts_[announce.layout_digest];
  if (!known.manifest) {
    if (announce.layout.empty())
      return fail(ErrorCode::kNotFound, "this sidecar does not know the layout");
    auto manifest = WSYNC_TRY(read_layout(announce.layout));
    if (manifest.layout_digest() != announce.layout_digest)
      return fail(ErrorCode::kInvalidInput, "the layout does not match its digest");
    known.manifest = std::make_shared<const Manifest>(std::move(manifest));
    known.blocks = std::make_shared<const patch::Layout>(known.manifest);
  }
  const bool is_cut_anew = !known.plan || known.plan->bucket_bytes() != announce.bucket_bytes;
  if (is_cut_anew) {
    known.plan = std::make_shared<const BucketPlan>(
        WSYNC_TRY(BucketPlan::create(*known.manifest, announce.bucket_bytes)));
    known.leaves = std::make_shared<const LeafTable>(*known.manifest, *known.plan);
  }
  if (is_cut_anew || !known.transfer || known.parts != announce.parts)
    WSYNC_TRY(cut_transfer(known, announce));
  if (known.plan->arena_bytes() != announce.arena_bytes)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("an arena of {} bytes was announced, but this layout needs {}",
                            announce.arena_bytes, known.plan->arena_bytes()));
  return &known;
}

staging::LayoutChecked OfferedLayouts::check(const staging::CheckLayout& command,
                                             const EngineRegistry& registry,
                                             const staging::Store& store,
                                             std::uint64_t versions_held) {
  staging::LayoutChecked verdict{.round = command.round};
  const auto known = find_or_read(command.announce);
  if (!known) {
    verdict.layout_unknown = known.error().code() == ErrorCode::kNotFound;
    verdict.reason = known.error().message();
    return verdict;
  }
  verdict.problems = registry.check_layout(*(*known)->manifest);
  if (!verdict.problems.empty()) {
    const control::Problem& first = verdict.problems.front();
    verdict.reason = fmt::format(
        "the layout does not fit the engines: {} ({}){}{}", first.tensor, first.detail,
        first.nearest.empty() ? "" : "; nearest: " + first.nearest,
        verdict.problems.size() > 1 ? fmt::format("; and {} more", verdict.problems.size() - 1)
                                    : "");
    return verdict;
  }
  if (const auto fits = store.check_budget(command.announce.arena_bytes, versions_held); !fits)
    verdict.reason = fits.error().message();
  verdict.fits_beside = store.fits_beside(command.announce.arena_bytes);
  return verdict;
}

}  // namespace wsync::agent
