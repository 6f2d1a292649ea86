// FirstDraft: the parts of a version whose layout nobody has described. The names, dtypes and
// shapes of its parts are the layout, so an arena can be made only when the last part is known.
// Until then the parts are kept as they came. Later versions need no FirstDraft.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "shared/base/error.h"
#include "trainer_side/publish/draft.h"

namespace wsync::publish {

// Thread: any, concurrently.
class FirstDraft {
 public:
  // Copies the part. `published`: dtype of its tensor. kInvalidInput, with the tensor's name, for a
  // range outside of the shape, or if shape or dtype differ from those of an earlier part; kRefused
  // if it is closed. What only the whole layout shows is told by put_into().
  [[nodiscard]] Result<> put(const DraftPart& part, DType published);
  // No part may be put from now on, until reopen(). kRefused if it is closed.
  [[nodiscard]] Result<> close();
  void reopen();
  // The tensors of all parts, and those of computed scales.
  [[nodiscard]] Result<std::vector<DraftTensor>> tensors() const;
  // Puts all parts into a draft of these tensors. Errors as Draft::put().
  [[nodiscard]] Result<> put_into(Draft& draft) const;

 private:
  struct Kept {
    DraftPart part;  // its pointers are to the members below, or into infos_
    std::vector<std::byte> data;
    std::vector<float> scales;
  };
  mutable std::mutex mutex_;
  // Under mutex_:
  bool is_closed_ = false;
  std::map<std::string, TensorInfo, std::less<>> infos_;
  std::deque<Kept> parts_;
};

}  // namespace wsync::publish
