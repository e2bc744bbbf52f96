#pragma once

#include "figures.hpp"
#include "measure/machine.hpp"

#include <cstdio>

namespace penstock::bench {

/// Prints the conditions of the measurement: machine, directories, engines with their probed features, files,
/// caveats.
void print_header(std::FILE* to, const Contest& contest, const measure::Machine& machine);

/// "/mnt/nvme0: ext4 on vda (virtio_blk), direct I/O, alignment 4096 B" of each directory.
[[nodiscard]] std::vector<std::string> describe_directories(const Contest& contest);
/// "io_uring 4.0 MiB x 4: files and buffers registered; buffers 24.0 MiB on transparent huge pages".
[[nodiscard]] std::string describe_load(const swap::DiskBenchmark& load);

void print_table(const std::vector<Figure>& figures, bool direct);
/// One line of JSON with everything that the header and the table say.
void print_json(const Contest& contest, const measure::Machine& machine, const std::vector<Figure>& figures);
/// A line of names, then one for each figure.
void print_csv(const std::vector<Figure>& figures, bool direct);

}  // namespace penstock::bench
