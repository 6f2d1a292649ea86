#include "inference_side/staging/lent_arena.h"

#include <memory>

namespace wsync::staging {

Result<LentArena> LentArena::of(const HeldVersion& version) {
  auto fd = WSYNC_TRY(version.share());
  const ArenaFile file = WSYNC_TRY(ArenaFile::of(fd.get()));
  return LentArena(std::move(fd), file,
                   std::static_pointer_cast<const MappedRegion>(version.hold()), version.data());
}

Result<ArenaView> LentArena::open(const ArenaIdentity& identity) const {
  KeptMappings kept;  // so that it is not mapped again
  kept.keep(file_, region_);
  return ArenaView::open(fd_.get(),
                         {.version = {{identity.version_epoch, identity.version_step}},
                          .layout = identity.layout,
                          .content = identity.content,
                          .data_bytes = data_.size()},
                         1, &kept);
}

}  // namespace wsync::staging
