// Files that are read: from a disk without the page cache, and from memory.
#pragma once

#include <string>

#include "bench/baseline/workbench.h"

namespace wsync::bench {

// Adds the rows of files. The file on disk is created in `directory`. If that directory is in
// memory, the row is left out with a note. The parameter `disk_read` says how the page cache is
// avoided: "O_DIRECT", or "fadvise", which asks the kernel to drop the file from the cache before
// each reading. `bench` outlives the rows. Each measurement checks what was read.
[[nodiscard]] Result<> add_file_rows(Workbench& bench, const std::string& directory,
                                     BaselineRows& rows);

}  // namespace wsync::bench
