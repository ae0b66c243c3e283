# HOCCL_CHECK_PMIX: pmix 4.0 or newer (Debian: libpmix-dev).
AC_DEFUN([HOCCL_CHECK_PMIX], [
  PKG_CHECK_MODULES([PMIX], [pmix >= 4.0])
])
