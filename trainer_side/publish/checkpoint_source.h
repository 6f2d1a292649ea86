// Weights from a Hugging Face checkpoint directory.
#pragma once

#include <memory>
#include <string>

#include "shared/base/error.h"
#include "trainer_side/publish/weight_source.h"

namespace wsync::publish {

// Opens a directory and checks it against every rule of the format (checkpoint_dir.h); the errors
// are those. The files may be replaced while the source lives, not rewritten in place: that is
// an error of read().
[[nodiscard]] Result<std::unique_ptr<WeightSource>> open_checkpoint_source(
    const std::string& directory);

}  // namespace wsync::publish
