// penstock.Files: ranges of files, moved in the background.
#include "arguments.hpp"
#include "bind.hpp"
#include "count.hpp"
#include "file_path.hpp"
#include "handle.hpp"
#include "memory.hpp"

#include <nanobind/stl/string.h>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace penstock::python {

namespace {

class Files {
 public:
  Files(const Count& threads, const Count& depth, const Count& request_max, const std::string& engine,
        double deadline_seconds) {
    check_above_zero("Files", "deadline_seconds", deadline_seconds);
    const penstock_files_options options{
        .size = sizeof(options),
        .request_max = request_max.get("Files", "request_max", 1),
        .depth = depth.get<std::uint32_t>("Files", "depth", 1),
        .threads = threads.get<std::uint32_t>("Files", "threads", 1),
        .engine = number_of(engine, io_engines, "Files", "engine"),
        .deadline_seconds = deadline_seconds,
    };
    penstock_files* made = nullptr;
    run([&] { return penstock_files_create(&options, &made); });
    handle_ = {made, "Files"};
  }

  void begin_read(const FilePath& path, nb::handle into, const Count& offset) {
    const std::string name = path.get("Files.begin_read", "path");
    const std::uint64_t first = offset.get("Files.begin_read", "offset");
    begin("Files.begin_read", Memory::of(into, Use::write, "Files.begin_read", "into"),
          [&](penstock_files* files, const Memory& memory) {
            return penstock_files_begin_read(files, name.c_str(), first, memory.data(), memory.bytes());
          });
  }
  void begin_write(const FilePath& path, nb::handle from, const Count& offset) {
    const std::string name = path.get("Files.begin_write", "path");
    const std::uint64_t first = offset.get("Files.begin_write", "offset");
    begin("Files.begin_write", Memory::of(from, Use::read, "Files.begin_write", "source"),
          [&](penstock_files* files, const Memory& memory) {
            return penstock_files_begin_write(files, name.c_str(), first, memory.data(), memory.bytes());
          });
  }
  std::uint64_t wait() { return finish(*handle_.get("Files.wait")); }
  [[nodiscard]] std::uint64_t started() {
    const auto files = handle_.get("Files.started");
    const WithoutGil released;
    const std::lock_guard one_call(mutex_);
    return penstock_files_started(files.get());
  }
  [[nodiscard]] nb::list notes() {
    const auto files = handle_.get("Files.notes");
    penstock_lines* lines = nullptr;
    run([&] {
      const std::lock_guard one_call(mutex_);
      return penstock_files_notes(files.get(), &lines);
    });
    return to_list(lines);
  }
  void close() {
    handle_.check_process("Files.close");
    if (handle_.is_closed()) return;
    const auto files = handle_.get("Files.close");
    handle_.close();
    (void)finish(*files);
  }
  /// An exception of the block is more important than what close() raises, which it gets as a note.
  void exit(nb::handle type, nb::handle value, nb::handle) {
    try {
      close();
    } catch (nb::python_error& error) {
      if (type.is_none()) throw;
      if (nb::hasattr(value, "add_note"))
        value.attr("add_note")(nb::str("and at the end of the block: ") + nb::str(error.value()));
    }
  }
  ~Files() {
    if (handle_.is_closed() || !handle_.is_of_this_process()) return;
    try {
      close();
    } catch (nb::python_error& error) {
      error.discard_as_unraisable("Files, which was not closed");
    }
  }

 private:
  template <class Begin>
  void begin(const char* function, Memory memory, const Begin& begin) {
    const auto files = handle_.get(function);
    penstock_error* error = nullptr;
    {
      const WithoutGil released;
      const std::lock_guard one_call(mutex_);
      error = begin(files.get(), memory);
      if (error == nullptr) in_flight_.push_back(std::move(memory));
    }
    check(error);
  }
  /// Returns how many transfers have ended.
  std::uint64_t finish(penstock_files& files) {
    std::uint64_t ended = 0;
    penstock_error* error = nullptr;
    std::vector<Memory> moved;
    {
      const WithoutGil released;
      const std::lock_guard one_call(mutex_);
      error = penstock_files_wait(&files, &ended);
      moved = std::exchange(in_flight_, {});
    }
    // The kernel may still use it.
    if (penstock_error_code(error) == PENSTOCK_DEADLINE_EXCEEDED) (void)new auto(std::move(moved));
    check(error);
    return ended;
  }

  Handle<penstock_files, penstock_files_free> handle_;
  std::mutex mutex_;               // a penstock_files is used by one thread at a time
  std::vector<Memory> in_flight_;  // of transfers since the last wait
};

}  // namespace

void bind_files(nb::module_& module) {
  nb::class_<Files>(module, "Files",
                    R"(Reads and writes ranges of files that the caller names, in the background.

Any offset, length and address is taken. Multiples of 4096 are fastest: their bytes bypass the page cache, where the
file system allows it, and are not copied. Nothing is made durable. Transfers are executed in any order: do not start one
that overlaps another, in the file or in memory, before wait().

Calls may come from any thread; they follow each other. close(), the end of a `with` block and the last reference wait
for the transfers.

threads: a transfer is cut into as many parts, moved at the same time. depth: most requests in flight of each thread.
request_max: most bytes of one request to the drive, a multiple of 4096. engine: "automatic", "io_uring", "libaio" or
"threads". deadline_seconds: for one request, and for opening a file.)")
      .def(nb::init<const Count&, const Count&, const Count&, const std::string&, double>(), nb::kw_only(),
           nb::arg("threads") = 1, nb::arg("depth") = 128, nb::arg("request_max") = 1 << 20,
           nb::arg("engine") = "automatic", nb::arg("deadline_seconds") = 60.0)
      .def("begin_read", &Files::begin_read, nb::arg("path"), nb::arg("into").none(), nb::arg("offset") = 0,
           R"(Starts to fill `into`, contiguous host memory, with the bytes of the file from `offset` on.

Raises NotFound, PermissionDenied, InvalidArgument, Truncated if the file ends before the last byte; nothing has started
then.)")
      .def(
          "begin_write", &Files::begin_write, nb::arg("path"), nb::arg("source").none(),
          nb::arg("offset") = 0,
          R"(Starts to write `source`, contiguous host memory that stays unchanged until wait(), to the file from
`offset` on. Makes the file, with mode 0600, or extends it if necessary; bytes that it has elsewhere stay.

Raises what begin_read() raises, and NoSpace.)")
      .def("wait", &Files::wait,
           R"(Waits until all transfers have ended. Returns how many were started since the last call.

Raises the error of the first transfer that has failed, with the file and the offset; those of the others are its notes.
DeadlineExceeded comes before all others. After it the memory of these transfers is never freed, because the kernel may
still use it.)")
      .def_prop_ro("started", &Files::started, "Transfers that were started since the last wait().")
      .def_prop_ro("notes", &Files::notes,
                   "What was done otherwise than asked for so far, with reasons: another engine, buffered "
                   "I/O, copies.")
      .def("close", &Files::close, "Waits as wait() does, and frees the object. A second call does nothing.")
      .def(
          "__enter__", [](nb::object self) { return self; }, nb::sig("def __enter__(self) -> Files"))
      .def("__exit__", &Files::exit, nb::arg("type").none(), nb::arg("value").none(),
           nb::arg("traceback").none());
}

}  // namespace penstock::python
