// Weights from a Hugging Face checkpoint directory.
#pragma once

#include <memory>
#include <string>

#include "shared/base/error.h"
#include "trainer_side/publish/weight_source.h"

namespace wsync::publish {

// Opens a directory and checks it against every rule of the format. Errors as in checkpoint_dir.h.
// If its metadata has a proof (weight_directory.h), a snapshot of other bytes fails. The files may
// be replaced while the source exists. A file that is rewritten in place makes read() fail.
[[nodiscard]] Result<std::unique_ptr<WeightSource>> open_checkpoint_source(
    const std::string& directory);

}  // namespace wsync::publish
