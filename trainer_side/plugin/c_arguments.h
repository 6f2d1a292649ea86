// What the C API's callers describe, checked: tensors, parts, and where their bytes are.
//
// Thread: any. `gpus` opens the GPU on which bytes are. Errors are kInvalidInput with the name of
// the tensor, and those of TrainerGpus::bytes().
#pragma once

#include <string_view>

#include "shared/base/error.h"
#include "shared/weights/dtype.h"
#include "trainer_side/plugin/wsync/trainer.h"
#include "trainer_side/publish/draft.h"
#include "trainer_side/publish/gathered_source.h"
#include "trainer_side/publish/trainer_gpus.h"

namespace wsync::plugin {

[[nodiscard]] Result<DType> dtype_argument(std::string_view tensor, const char* name);
// `data` and `user` of the description are used as long as the result.
[[nodiscard]] Result<publish::RankTensor> tensor_argument(publish::TrainerGpus& gpus,
                                                          const wsync_trainer_tensor& tensor);
// The result has pointers into the part.
[[nodiscard]] Result<publish::DraftPart> part_argument(publish::TrainerGpus& gpus,
                                                       const wsync_trainer_part& part);

}  // namespace wsync::plugin
