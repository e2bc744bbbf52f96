// penstock._core: the C interface in Python.
#include "bind.hpp"
#include "errors.hpp"

#include <penstock/penstock.h>

NB_MODULE(_core, module) {
  module.def("_set_exceptions", penstock::python::set_exceptions);
  module.attr("__version__") = penstock_version();
  penstock::python::bind_files(module);
  penstock::python::bind_optimizer(module);
  penstock::python::bind_runtime(module);
}
