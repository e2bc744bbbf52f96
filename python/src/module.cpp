// penstock._core: the C interface in Python.
#include "bind.hpp"
#include "errors.hpp"

#include <penstock/penstock.h>

#include <nanobind/nanobind.h>

NB_MODULE(_core, module) {
  nanobind::set_leak_warnings(false);  // of objects that a program holds when it ends
  module.def("_set_exceptions", penstock::python::set_exceptions);
  module.attr("__version__") = penstock_version();
  penstock::python::bind_calls(module);
  penstock::python::bind_checksum(module);
  penstock::python::bind_engine(module);
  penstock::python::bind_files(module);
  penstock::python::bind_host_memory(module);
  penstock::python::bind_optimizer(module);
  penstock::python::bind_tensor(module);
  penstock::python::bind_runtime(module);
  penstock::python::bind_tile_state(module);
  penstock::python::bind_tile_steps(module);
}
