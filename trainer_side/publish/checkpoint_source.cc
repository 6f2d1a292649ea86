#include "trainer_side/publish/checkpoint_source.h"

#include <utility>

#include "shared/weights/checkpoint_dir.h"

namespace wsync::publish {
namespace {

class CheckpointSource final : public WeightSource {
 public:
  explicit CheckpointSource(CheckpointDirectory directory)
      : directory_(std::move(directory)),
        manifest_(std::make_shared<const Manifest>(directory_.manifest())) {}
  [[nodiscard]] const std::shared_ptr<const Manifest>& manifest() const override {
    return manifest_;
  }
  [[nodiscard]] Result<> read(std::uint32_t tensor, std::uint64_t offset,
                              std::span<std::byte> into) override {
    return directory_.read(tensor, offset, into);
  }

 private:
  CheckpointDirectory directory_;
  std::shared_ptr<const Manifest> manifest_;
};

}  // namespace

Result<std::unique_ptr<WeightSource>> open_checkpoint_source(const std::string& directory) {
  auto opened = WSYNC_TRY(CheckpointDirectory::open(directory));
  return std::make_unique<CheckpointSource>(std::move(opened));
}

}  // namespace wsync::publish
