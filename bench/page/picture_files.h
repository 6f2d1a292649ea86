// Plots as files of their own.
#pragma once

#include <string>
#include <vector>

#include "bench/harness/child.h"
#include "bench/page/plots.h"
#include "shared/base/error.h"

namespace wsync::bench {

// The program that makes PNG of SVG, of the package librsvg2-bin.
inline constexpr const char* kPictureConverter = "rsvg-convert";

struct PictureFiles {
  std::vector<std::string> svg;
  std::vector<std::string> png;
  std::string png_left_out;  // why there is none; empty: there are
};

// Writes each plot that has a picture to `directory`, which is made when it is not there: ID.svg,
// and ID.png by the converter found in `path`. kIo, kNotFound or kResourceExhausted name the file;
// kIo with the converter's words when it fails; kDeadline, kCancelled.
[[nodiscard]] Result<PictureFiles> write_pictures(const std::vector<Plot>& plots,
                                                  const std::string& directory,
                                                  const std::string& path,
                                                  const Interrupt& interrupt);

}  // namespace wsync::bench
