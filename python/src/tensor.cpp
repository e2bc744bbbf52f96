// penstock.Tensor and penstock.Lease: named bytes of a runtime, and the right to use them.
#include "tensor.hpp"
#include "arguments.hpp"
#include "bind.hpp"
#include "count.hpp"

#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <cstring>

namespace penstock::python {

namespace {

const Choices accesses{
    {"read", PENSTOCK_READ}, {"modify", PENSTOCK_MODIFY}, {"overwrite", PENSTOCK_OVERWRITE}};

PyType_Slot lease_slots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(Lease::get_buffer)},
                             {Py_bf_releasebuffer, reinterpret_cast<void*>(Lease::release_buffer)},
                             {0, nullptr}};

}  // namespace

void Lease::end() {
  handle_.check_process("Lease.end");
  if (views_ == 0) return handle_.close();
  refuse({.function = "Lease.end",
          .argument = "Lease",
          .reason = "its memory is still in use",
          .got = std::to_string(views_) + " views, such as numpy arrays",
          .advice = "delete the arrays that were made of it before",
          .code = PENSTOCK_IN_USE});
}

void Lease::exit(nb::handle type, nb::handle, nb::handle) {
  if (type.is_none() || views_ == 0) end();
}

int Lease::get_buffer(PyObject* self, Py_buffer* view, int flags) {
  Lease& lease = *nb::inst_ptr<Lease>(self);
  if (lease.handle_.is_closed() || !lease.handle_.is_of_this_process()) {
    PyErr_SetString(PyExc_BufferError, lease.handle_.is_closed()
                                           ? "the lease has ended"
                                           : "this process was forked from the one that has the lease");
    return -1;
  }
  const auto size = static_cast<Py_ssize_t>(lease.bytes_);
  if (PyBuffer_FillInfo(view, self, lease.data_, size, lease.is_read_only_ ? 1 : 0, flags) != 0) return -1;
  ++lease.views_;
  return 0;
}

void Lease::release_buffer(PyObject* self, Py_buffer*) {
  --nb::inst_ptr<Lease>(self)->views_;
}

std::byte* Tensor::part_of(const Memory& memory, std::uint64_t first, const char* function,
                           const char* argument) const {
  if (first <= memory.bytes() && bytes_ <= memory.bytes() - first) return memory.data() + first;
  refuse({.function = function,
          .argument = argument,
          .reason = "it is too small",
          .wanted =
              std::to_string(bytes_) + " bytes, of " + name_ + ", from byte " + std::to_string(first) + " on",
          .got = std::to_string(memory.bytes()) + " bytes"});
}

template <class Action>
void Tensor::with_bytes(const char* function, penstock_access access, const Action& use) {
  const auto runtime = runtime_->get(function);
  run([&] {
    penstock_lease* lease = nullptr;
    void* bytes = nullptr;
    penstock_error* const error =
        penstock_lease_begin(runtime.get(), number_, access, &lease, &bytes, nullptr);
    if (error == nullptr) use(bytes);
    penstock_lease_end(lease);
    return error;
  });
}

void Tensor::call(const char* function, penstock_error* (*called)(penstock_runtime*, penstock_tensor)) {
  const auto runtime = runtime_->get(function);
  run([&] { return called(runtime.get(), number_); });
}

std::unique_ptr<Lease> Tensor::lease(const std::string& access) {
  constexpr const char* function = "Tensor.lease";
  const auto runtime = runtime_->get(function);
  const std::int32_t number = number_of(access, accesses, function, "access");
  penstock_lease* lease = nullptr;
  void* data = nullptr;
  std::uint64_t bytes = 0;
  run([&] { return penstock_lease_begin(runtime.get(), number_, number, &lease, &data, &bytes); });
  return std::make_unique<Lease>(lease, data, bytes, number == PENSTOCK_READ);
}

void Tensor::write(nb::handle source, const Count& first) {
  const Memory from = Memory::of(source, Use::read, "Tensor.write", "source");
  const std::byte* const begin = part_of(from, first.get("Tensor.write", "first"), "Tensor.write", "source");
  with_bytes("Tensor.write", PENSTOCK_OVERWRITE, [&](void* bytes) { std::memcpy(bytes, begin, bytes_); });
}

void Tensor::read(nb::handle into, const Count& first) {
  const Memory to = Memory::of(into, Use::write, "Tensor.read", "into");
  std::byte* const begin = part_of(to, first.get("Tensor.read", "first"), "Tensor.read", "into");
  with_bytes("Tensor.read", PENSTOCK_READ, [&](void* bytes) { std::memcpy(begin, bytes, bytes_); });
}

void bind_tensor(nb::module_& module) {
  nb::class_<Lease>(module, "Lease", nb::type_slots(lease_slots),
                    R"(Access to a tensor's bytes in host memory, where they stay meanwhile.

A buffer of bytes: numpy.frombuffer(lease, numpy.float32), torch.frombuffer(lease, dtype=torch.float32). After "modify"
and "overwrite" the tensor has new contents when the lease ends: by end(), at the end of a `with` block, or with the last
reference. Delete the arrays that were made of it before: end() raises InUse otherwise. If a `with` block is
left by an exception, the lease ends with the last of its arrays.)")
      .def("end", &Lease::end, "Ends it; a second call does nothing.")
      .def_prop_ro("nbytes", &Lease::bytes)
      .def(
          "__enter__", [](nb::object self) { return self; }, nb::sig("def __enter__(self) -> Lease"))
      .def("__exit__", &Lease::exit, nb::arg("type").none(), nb::arg("value").none(),
           nb::arg("traceback").none());

  nb::class_<Tensor>(module, "Tensor", "Named bytes of a Runtime.")
      .def(
          "lease", &Tensor::lease, nb::arg("access"),
          R"(Waits until the tensor is in memory, and returns a Lease. access: "read", which any number of leases may have
at a time, "modify", or "overwrite", which does not load it: bytes that are not written are undefined.

Raises BudgetTooSmall, naming the leases, when memory has no room and no transfer can free any; InvalidArgument, also for
a tensor that is read before it was written, and when this thread holds a lease that excludes the new one; Corrupted,
IoFailed and others, of the disk.)")
      .def("write", &Tensor::write, nb::arg("source").none(), nb::kw_only(), nb::arg("first") = 0,
           "Sets its bytes to as many of `source`, from byte `first` on. Raises what lease() raises.")
      .def("read", &Tensor::read, nb::arg("into").none(), nb::kw_only(), nb::arg("first") = 0,
           "Copies its bytes to `into`, from byte `first` of that on. Raises what lease() raises.")
      .def("prefetch", &Tensor::prefetch, "Hints that it is used soon: loads it when memory has room.")
      .def("discard", &Tensor::discard, "Discards its contents, in memory and on disk.")
      .def("remove", &Tensor::remove,
           "Removes it, without leases, and frees what it has. Waits for its transfers.")
      .def_prop_ro("name", &Tensor::name)
      .def_prop_ro("nbytes", &Tensor::bytes);
}

}  // namespace penstock::python
