#include <penstock/c/files.h>

#include "c/handles.hpp"

#include <penstock/tiers/io/file_transfers.hpp>

#include <memory>

struct penstock_files {
  std::unique_ptr<penstock::tiers::FileTransfers> transfers;
  penstock::c::HandleProcess process = {};
};

namespace {

using namespace penstock;
using tiers::FileTransfers;

Result<FileTransfers::Options> read(const char* function, const penstock_files_options* given) {
  PENSTOCK_TRY_ASSIGN(const auto from, c::read_struct(function, "options", given));
  FileTransfers::Options options;
  if (from.request_max != 0) options.request_max = ByteCount(from.request_max);
  if (from.depth != 0) options.depth = from.depth;
  if (from.threads != 0) options.threads = from.threads;
  PENSTOCK_TRY_ASSIGN(options.engine,
                      c::enumerator<tiers::EngineChoice>(function, "options.engine", from.engine, 4));
  PENSTOCK_TRY_ASSIGN(options.deadline, c::duration(function, "options.deadline_seconds",
                                                    from.deadline_seconds, options.deadline));
  return options;
}

}  // namespace

penstock_error* penstock_files_create(const penstock_files_options* options, penstock_files** files) {
  const char* const function = __func__;
  return c::call(function, {{"options", options}, {"files", files}}, [&]() -> Result<void> {
    PENSTOCK_TRY_ASSIGN(auto read_options, read(function, options));
    PENSTOCK_TRY_ASSIGN(auto made, FileTransfers::create(std::move(read_options)));
    c::give(files, penstock_files{std::move(made)});
    return ok();
  });
}

void penstock_files_free(penstock_files* files) {
  c::end(files);
}

penstock_error* penstock_files_begin_read(penstock_files* files, const char* path, std::uint64_t offset,
                                          void* into, std::uint64_t bytes) {
  return c::call(__func__, {{"files", files}, {"path", path}}, [&] {
    return files->transfers->start_read(path, FileOffset(offset),
                                        HostSpan(static_cast<std::byte*>(into), ByteCount(bytes)));
  });
}

penstock_error* penstock_files_begin_write(penstock_files* files, const char* path, std::uint64_t offset,
                                           const void* from, std::uint64_t bytes) {
  return c::call(__func__, {{"files", files}, {"path", path}}, [&] {
    return files->transfers->start_write(
        path, FileOffset(offset), ConstHostSpan(static_cast<const std::byte*>(from), ByteCount(bytes)));
  });
}

penstock_error* penstock_files_wait(penstock_files* files, std::uint64_t* ended) {
  return c::call(__func__, {{"files", files}}, [&]() -> Result<void> {
    PENSTOCK_TRY_ASSIGN(const std::size_t count, files->transfers->wait());
    if (ended != nullptr) *ended = count;
    return ok();
  });
}

std::uint64_t penstock_files_started(const penstock_files* files) {
  return files == nullptr ? 0 : files->transfers->started();
}

penstock_error* penstock_files_notes(const penstock_files* files, penstock_lines** lines) {
  return c::call(__func__, {{"files", files}, {"lines", lines}}, [&]() -> Result<void> {
    c::give(lines, penstock_lines{files->transfers->notes()});
    return ok();
  });
}
