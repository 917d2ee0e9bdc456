"""Circuits by name: hidden Markov models, hidden Chow-Liu trees, Poon-Domingos, RAT-SPNs."""

from jaxjuice.structures._chow_liu import RootedTree as RootedTree, chow_liu_tree as chow_liu_tree
from jaxjuice.structures._hclt import HCLT as HCLT
from jaxjuice.structures._hmm import HMM as HMM, GeneralizedHMM as GeneralizedHMM
from jaxjuice.structures._mutual_information import mutual_information as mutual_information
from jaxjuice.structures._pd import PD as PD, PDHCLT as PDHCLT
from jaxjuice.structures._rat_spn import RAT_SPN as RAT_SPN
