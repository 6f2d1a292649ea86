#include "trainer_side/publish/checkpoint_source.h"

#include <utility>

#include "shared/base/format.h"
#include "shared/base/planted.h"
#include "shared/weights/checkpoint_dir.h"
#include "shared/weights/weight_directory.h"

namespace wsync::publish {
namespace {

class CheckpointSource final : public WeightSource {
 public:
  CheckpointSource(CheckpointDirectory directory, std::optional<WeightProof> proof)
      : directory_(std::move(directory)),
        proof_(proof),
        manifest_(std::make_shared<const Manifest>(directory_.manifest())) {}
  [[nodiscard]] const std::shared_ptr<const Manifest>& manifest() const override {
    return manifest_;
  }
  [[nodiscard]] Result<> read(std::uint32_t tensor, std::uint64_t offset,
                              std::span<std::byte> into) override {
    return directory_.read(tensor, offset, into);
  }
  [[nodiscard]] Result<> check(const Digest& content) const override {
    if (!proof_ || proof_->content == content || planted("directory_is_not_proven")) return {};
    return fail(ErrorCode::kDigestMismatch,
                fmt::format("{}: its bytes have the digest {}, but its writer states {} of version "
                            "{}: a file was changed or damaged; write it again",
                            directory_.path(), content.to_string(), proof_->content.to_string(),
                            proof_->version.to_string()));
  }

 private:
  CheckpointDirectory directory_;
  std::optional<WeightProof> proof_;
  std::shared_ptr<const Manifest> manifest_;
};

}  // namespace

Result<std::unique_ptr<WeightSource>> open_checkpoint_source(const std::string& directory) {
  auto opened = WSYNC_TRY(CheckpointDirectory::open(directory));
  const auto proof = WSYNC_TRY(weight_proof(opened));
  return std::make_unique<CheckpointSource>(std::move(opened), proof);
}

}  // namespace wsync::publish
