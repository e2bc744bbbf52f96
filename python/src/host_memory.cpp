// penstock.HostMemory: host memory in whole pages, pinned if asked for.
#include "arguments.hpp"
#include "bind.hpp"
#include "count.hpp"
#include "handle.hpp"

#include <nanobind/stl/string.h>
#include <cstdint>
#include <string>

namespace penstock::python {

namespace {

class HostMemory {
 public:
  HostMemory(const Count& bytes, const std::string& pinning) : bytes_(bytes.get("HostMemory", "nbytes")) {
    const std::int32_t number = number_of(pinning, pinnings, "HostMemory", "pinning");
    penstock_memory* made = nullptr;
    run([&] { return penstock_memory_create(bytes_, number, &made, &data_); });
    handle_ = {made, "HostMemory"};
  }
  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }
  [[nodiscard]] std::uintptr_t address() const { return reinterpret_cast<std::uintptr_t>(data_); }
  [[nodiscard]] bool is_pinned() const {
    return penstock_memory_is_pinned(handle_.get("HostMemory.is_pinned").get()) != 0;
  }
  [[nodiscard]] nb::list notes() const {
    const auto memory = handle_.get("HostMemory.notes");
    penstock_lines* lines = nullptr;
    check(penstock_memory_notes(memory.get(), &lines));
    return to_list(lines);
  }
  static int get_buffer(PyObject* self, Py_buffer* view, int flags) {
    const HostMemory& memory = *nb::inst_ptr<HostMemory>(self);
    if (!memory.handle_.is_of_this_process()) {
      PyErr_SetString(PyExc_BufferError, "this process was forked from the one that has the memory");
      return -1;
    }
    return PyBuffer_FillInfo(view, self, memory.data_, static_cast<Py_ssize_t>(memory.bytes_), 0, flags);
  }

 private:
  Handle<penstock_memory, penstock_memory_free> handle_;
  void* data_ = nullptr;
  std::uint64_t bytes_;
};

PyType_Slot memory_slots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(HostMemory::get_buffer)},
                              {0, nullptr}};

}  // namespace

void bind_host_memory(nb::module_& module) {
  nb::class_<HostMemory>(module, "HostMemory", nb::type_slots(memory_slots),
                         R"(Host memory in whole pages, with zeros: direct I/O needs no copy of it.

A buffer: numpy.frombuffer(memory, numpy.float32), torch.frombuffer(memory, dtype=torch.float32). It is freed with the
last array that was made of it. pinning: "none", "preferred" or "required": whether the kernel may swap it out. Arrays that
were made of it before a fork are in the forked process too, copy on write, with the pinning "none"; with another one the
memory is not there.

Raises NoSpace; PermissionDenied, when pinning is required and the limit of locked memory is too small.)")
      .def(nb::init<const Count&, const std::string&>(), nb::arg("nbytes"), nb::kw_only(),
           nb::arg("pinning") = "none")
      .def_prop_ro("nbytes", &HostMemory::bytes)
      .def_prop_ro("address", &HostMemory::address)
      .def_prop_ro("is_pinned", &HostMemory::is_pinned)
      .def_prop_ro("notes", &HostMemory::notes, "Options that are not in effect, with reasons.");
}

}  // namespace penstock::python
